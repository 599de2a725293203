"""Does a tokenizer belong to a model? `match` says what does not fit, with the evidence and the cure.

A tokenizer of another checkpoint raises no error as long as its ids are in range, and equal vocabulary sizes prove
nothing. So `match` asks the weights themselves: a trained model finds ordinary text about as likely as it expects any
text to be, and keeps words of one kind (Monday, Tuesday) close together in its embedding. Ids of another tokenizer
break both. Where the weights cannot tell (random ones, for instance), it says so instead of guessing.
"""

import contextlib
import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labutils import views
from labutils.contracts import evidence
from labutils.contracts.arguments import checked_info, checked_probes, require_model, require_tokenizer

ERROR, WARNING = "error", "warning"
ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
NO_LIMIT = 10**20  # a tokenizer without a stated limit has model_max_length 1e30

# What a tokenizer must spell exactly as its file does: plain text, digits, accents (one of them a character of its
# own, U+0301), emoji, white space.
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 2026: 1,234.5 + 42 = ?",
    "A naïve cafe\u0301, Ångström, 日本語 🤗",
    "def f(x):\n\n\n    return  x\n",
)

# Ids of "Hello world! 12" by (model_type, vocab_size, hidden_size), for when neither files nor weights can tell.
KNOWN_TEXT = "Hello world! 12"
KNOWN = {
    ("bert", 30522, 384): ("all-MiniLM-L6-v2", (7592, 2088, 999, 2260)),
    ("bert", 30522, 768): ("bert-base-uncased", (7592, 2088, 999, 2260)),
    ("llama", 49152, 576): ("SmolLM2-135M", (19556, 905, 17, 216, 33, 34)),
}

# Tokens with which chat models end a turn. A model that stops at one of them was trained on a template.
TURN_ENDS = {"<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>"}


# --- what match returns ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit. `severity`: "error" (wrong results or a crash) or "warning" (wrong in some uses)."""

    what: str
    severity: str
    evidence: str
    cure: str


class Match(Sequence):
    """The findings of `match`, worst first, as a sequence. True (and `.ok`) when none of them is an error.

    `checks` says for every contract what was compared and, where it could not be, why: no findings means "nothing
    found", and `checks` shows how far the search went.
    """

    def __init__(self, findings: Sequence[Finding], checks: Sequence[tuple[str, str]], about: str):
        self.findings = tuple(sorted(findings, key=lambda finding: finding.severity != ERROR))
        self.checks = tuple(checks)
        self.about = about

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index):
        return self.findings[index]

    @property
    def ok(self) -> bool:
        """True when there is no error among the findings."""
        return all(finding.severity != ERROR for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def _headline(self) -> str:
        if not self.findings:
            return f"{self.about}: nothing found that does not fit"
        errors = sum(finding.severity == ERROR for finding in self.findings)
        counts = [f"{number} {name}{'s' if number > 1 else ''}"
                  for name, number in ((ERROR, errors), (WARNING, len(self) - errors)) if number]
        return f"{self.about}: {', '.join(counts)}"

    def __repr__(self) -> str:
        lines = [self._headline()]
        for finding in self.findings:
            lines += [f"{finding.severity}: {finding.what}",
                      f"  evidence: {finding.evidence}", f"  cure: {finding.cure}"]
        if not self.findings:
            lines += [f"  {contract}: {outcome}" for contract, outcome in self.checks]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self.findings:
            return views.table(("contract", "what was compared"), self.checks, self._headline())._repr_html_()
        rows = [[views.Cell(finding.severity, "#fde2d2" if finding.severity == ERROR else "#fff3c4", bold=True),
                 finding.what, finding.evidence, finding.cure] for finding in self.findings]
        return views.table(("severity", "what", "evidence", "cure"), rows, self._headline())._repr_html_()


# --- match ----------------------------------------------------------------------------------------------------------


def match(tokenizer, model, *, probes: Mapping[str, Sequence[int]] | None = None,
          loading_info: Mapping[str, Any] | None = None) -> Match:
    """Say whether a tokenizer and a model belong together, and why not.

    tokenizer: a transformers tokenizer. model: a loaded transformers model with a token embedding, on any device.
    probes: texts whose ids (without special tokens) are known for this model, e.g. from a receipt; they are compared
    exactly. loading_info: what `from_pretrained(..., output_loading_info=True)` returned; without it, a model that came
    from a local folder with safetensors is compared with that folder (on the meta device, so no weight is read).

    Reads at most two tokenizer files and runs the model once, on about 45 tokens. Changes neither argument.
    Raises InputError for anything that is not a tokenizer, a model, a mapping of texts to ids or loading information.
    """
    require_tokenizer(tokenizer)
    require_model(model)
    pair = _Pair(tokenizer, model)
    _rows(pair)
    _same_tokenizer(pair, checked_probes(probes))
    _tokenizer_files(pair)
    _special_ids(pair)
    _inputs(pair)
    _positions(pair)
    _keys(pair, checked_info(loading_info))
    _class(pair)
    _template(pair)
    return Match(pair.findings, pair.checks, f"{type(tokenizer).__name__} with {type(model).__name__}")


@dataclass
class _Pair:
    """The two pieces and what was found so far. Every check adds to `findings` or to `checks`."""

    tokenizer: Any
    model: Any
    findings: list[Finding] = field(default_factory=list)
    checks: list[tuple[str, str]] = field(default_factory=list)
    head_is_random: bool = False

    def __post_init__(self):
        self.config = self.model.config.get_text_config()
        self.generation_config = getattr(self.model, "generation_config", None)
        self.embedding = self.model.get_input_embeddings().weight
        self.rows = self.embedding.shape[0]
        self.vocabulary = self.tokenizer.get_vocab()
        self.highest = max(self.vocabulary.values())
        self.model_folder = _local_folder(self.model)
        self.tokenizer_folder = _local_folder(self.tokenizer)

    def fault(self, what: str, severity: str, evidence: str, cure: str) -> None:
        self.findings.append(Finding(what, severity, evidence, cure))

    def note(self, contract: str, outcome: str) -> None:
        self.checks.append((contract, outcome))

    @property
    def generates(self) -> bool:
        """True for a decoder with its language-model head."""
        return (self.model.can_generate() and not getattr(self.model.config, "is_encoder_decoder", False)
                and not self.encoder_as_decoder)

    @property
    def encoder_as_decoder(self) -> bool:
        """True for an encoder's body (attention looks both ways) under a class that generates."""
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        )

        return (type(self.model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
                and self.config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
                and getattr(self.config, "is_decoder", None) is False)

    def stops(self) -> list[int]:
        """The ids at which generation ends: the generation config's, else the config's."""
        return _ids_of(self.generation_config, "eos") or _ids_of(self.config, "eos")

    def name(self, token_id: int) -> str:
        return repr(self.tokenizer.convert_ids_to_tokens(token_id)) if 0 <= token_id <= self.highest else "no token"

    def spell(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _rows(pair: _Pair) -> None:
    """Every id that the tokenizer can emit needs a row of the embedding; spare rows are fine."""
    added = {number for number in pair.tokenizer.get_added_vocab().values() if number >= pair.rows}
    beyond = sum(number >= pair.rows for number in pair.vocabulary.values())
    if beyond:
        only_added = beyond == len(added)
        pair.fault(
            "added tokens without rows" if only_added else "ids beyond the embedding", ERROR,
            f"the tokenizer can emit id {pair.highest} ({pair.name(pair.highest)}), the embedding has {pair.rows} "
            f"rows: {beyond} ids raise an index error, on a GPU a device-side assert",
            "call model.resize_token_embeddings(len(tokenizer)), then train the new rows" if only_added
            else "load the tokenizer of this checkpoint",
        )
    spare = pair.rows - pair.highest - 1
    pair.note("rows", f"highest id {pair.highest}, {pair.rows} rows" + (f": {spare} spare, which is legal (padding)"
                                                                        if spare > 0 else ""))
    stated = getattr(pair.config, "vocab_size", None)
    if isinstance(stated, int) and stated != pair.rows:
        pair.fault("config.vocab_size differs from the embedding", WARNING,
                   f"config.vocab_size is {stated}, the embedding has {pair.rows} rows; a saved copy will not load",
                   "resize with model.resize_token_embeddings, which keeps both in step")


def _special_ids(pair: _Pair) -> None:
    """Special ids must be in range, and tokenizer, config and generation config must mean the same token."""
    places = {"config": pair.model.config, "generation_config": pair.generation_config}
    if pair.config is not pair.model.config:
        places["config.text_config"] = pair.config
    compared = 0
    for role in ROLES:
        stated = {place: ids for place, holder in places.items() if (ids := _ids_of(holder, role))}
        for place, ids in stated.items():
            if outside := [number for number in ids if not 0 <= number < pair.rows]:
                pair.fault("special id outside the embedding", ERROR,
                           f"{place}.{role}_token_id is {outside[0]}, the embedding has {pair.rows} rows",
                           f"set {place}.{role}_token_id to {_own_id(pair, role)}, the tokenizer's")
        token = getattr(pair.tokenizer, f"{role}_token", None)
        if token is not None and str(token) not in pair.vocabulary:
            pair.fault(f"{role} token is not in the vocabulary", ERROR,
                       f"tokenizer.{role}_token is {str(token)!r}, which has no id",
                       "set it to a token of the vocabulary, or add it and resize the embedding")
            continue
        compared += len(stated)
        if role == "eos":
            _compare_eos(pair, stated)
        else:
            _compare_special(pair, role, stated)
    pair.note("special ids", f"{compared} ids of config and generation config compared with the tokenizer's")


def _own_id(pair: _Pair, role: str) -> int | None:
    return getattr(pair.tokenizer, f"{role}_token_id", None)


def _compare_eos(pair: _Pair, stated: dict[str, list[int]]) -> None:
    own, stops = _own_id(pair, "eos"), pair.stops()
    if own is None:
        _report_absent(pair, "eos", stated)
    elif stops and own not in stops and own < pair.rows:
        pair.fault("eos id differs", ERROR,
                   f"the tokenizer's eos is {own} ({pair.name(own)}); generation stops only at {_listed(pair, stops)}",
                   "put the token that ends a turn into generation_config.eos_token_id (it may be a list)")
    config, generation = stated.get("config"), stated.get("generation_config")
    if config and generation and not set(config) & set(generation):
        pair.fault("config and generation config disagree on eos", WARNING,
                   f"config.eos_token_id is {_listed(pair, config)}, generation_config.eos_token_id is "
                   f"{_listed(pair, generation)}; generate() follows the latter, other programs the former",
                   "give both the same ids")


def _compare_special(pair: _Pair, role: str, stated: dict[str, list[int]]) -> None:
    own = _own_id(pair, role)
    if own is None:
        # Many chat models state a bos that their tokenizer never adds (Qwen); that is no fault.
        if role != "bos":
            _report_absent(pair, role, stated)
        return
    other = {place: ids for place, ids in stated.items() if own not in ids}
    if other:
        pair.fault(f"{role} id differs", WARNING if role == "pad" else ERROR,
                   f"the tokenizer's {role} is {own} ({pair.name(own)}); "
                   + ", ".join(f"{place}.{role}_token_id is {_listed(pair, ids)}" for place, ids in other.items()),
                   "if this is the right tokenizer, set "
                   + " and ".join(f"{place}.{role}_token_id" for place in other) + f" to {own}")


def _report_absent(pair: _Pair, role: str, stated: dict[str, list[int]]) -> None:
    if not stated:
        return
    place, ids = next(iter(stated.items()))
    symptom = {"pad": "batches cannot be padded", "eos": "its users cannot tell where a text ends"}
    pair.fault(f"tokenizer has no {role} token", WARNING,
               f"tokenizer.{role}_token is None, {place}.{role}_token_id is {_listed(pair, ids)}: "
               + symptom.get(role, "the model was trained with one"),
               f"load the tokenizer with its tokenizer_config.json, or set tokenizer.{role}_token")


def _listed(pair: _Pair, ids: Sequence[int]) -> str:
    return ", ".join(f"{number} ({pair.name(number)})" for number in ids)


def _inputs(pair: _Pair) -> None:
    """What the tokenizer makes must be what `forward` takes."""
    taken = inspect.signature(pair.model.forward).parameters
    if "input_ids" not in taken:
        pair.note("inputs", "not compared: forward does not name its arguments (a wrapper?)")
        return
    made = pair.tokenizer("one", "two")
    unknown = [name for name in made if name not in taken]
    if unknown and pair.model.can_generate():  # DistilBERT and BERT's tokenizer, say, are no fault
        pair.fault("inputs the model does not take", WARNING,
                   f"the tokenizer makes {', '.join(unknown)}, which {type(pair.model).__name__}.forward does not name "
                   "and generate(**encoding) refuses",
                   "if this is the right tokenizer, pass input_ids and attention_mask only; "
                   "else load the tokenizer of this checkpoint")
    types = getattr(pair.config, "type_vocab_size", None)
    highest_type = max(made.get("token_type_ids", [0]))
    if types and "token_type_ids" in taken and highest_type >= types:
        pair.fault("token types beyond the embedding", ERROR,
                   f"a pair of texts gets token_type_ids up to {highest_type}, the model has {types} type row(s)",
                   "load the tokenizer of this checkpoint")
    pair.note("inputs", f"the tokenizer makes {', '.join(made)}")


def _positions(pair: _Pair) -> None:
    """The tokenizer's length limit must not exceed a table of learned positions."""
    import torch

    names = {"position_embeddings", "position_embedding", "wpe", "embed_positions"}
    tables = [name for name, module in pair.model.named_modules()
              if name.rpartition(".")[2] in names and isinstance(module, torch.nn.Embedding)]
    limit, stated = getattr(pair.config, "max_position_embeddings", None), pair.tokenizer.model_max_length
    if stated > NO_LIMIT:
        pair.note("length", f"the tokenizer has no limit, so truncation=True cuts nothing; the model's is {limit}")
    elif tables and limit and stated > limit:
        pair.fault("length limit beyond the positions", ERROR,
                   f"tokenizer.model_max_length is {stated}, the model has {limit} learned positions: "
                   "truncation=True leaves texts that raise an index error",
                   f"set tokenizer.model_max_length = {limit}")
    else:
        pair.note("length", f"tokenizer {stated}, model {limit}")


# --- weights and class ----------------------------------------------------------------------------------------------


def _keys(pair: _Pair, info: Mapping[str, Any] | None) -> None:
    """Missing, unexpected and mismatched keys, as reported at load time or by loading the folder's headers again."""
    at_load = info is not None
    where = "at load time" if at_load else "in the model's folder"
    if not at_load:
        info, why_not = _reloaded(pair)
        if info is None:
            pair.note("weights", f"not compared with a file: {why_not}")
            return
    _mismatched(pair, info, at_load)
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing:
        prefix = getattr(pair.model, "base_model_prefix", "")
        has_body = bool(prefix) and hasattr(pair.model, prefix)
        pair.head_is_random = has_body and not any(key.startswith(prefix + ".") for key in missing)
        what, cure = "weights missing", "check the class and the config, and that every weight file is whole"
        if pair.head_is_random:
            what, cure = "head without weights", "train this head, or load a checkpoint that was saved with it"
        pair.fault(what, ERROR, f"{_some(missing)} not found {where}: random, unless trained since; "
                                "other answers after every load", cure)
    layers = [key for key in unexpected if re.search(r"\.\d+\.", key)]
    if layers:
        pair.fault("weights left out", WARNING, f"{_some(layers)} found {where} but not in the model",
                   "check config.num_hidden_layers and the class against the checkpoint")
    if info.get("error_msgs"):
        pair.fault("loading reported errors", ERROR, "; ".join(map(str, info["error_msgs"])), "load the files again")
    rest = len(unexpected) - len(layers)
    counts = f"{len(missing)} missing, {len(unexpected)} unexpected, {len(info['mismatched_keys'])} of another shape"
    pair.note("weights", f"{counts}, {where}" + (f"; {rest} unexpected outside the layers, no fault" if rest else ""))


def _mismatched(pair: _Pair, info: Mapping[str, Any], at_load: bool) -> None:
    vocabulary = {id(layer.weight) for layer in (pair.model.get_input_embeddings(), pair.model.get_output_embeddings())
                  if getattr(layer, "weight", None) is not None}
    named = dict(pair.model.named_parameters(remove_duplicate=False))
    wrong = []
    for key, saved, wanted in sorted(info["mismatched_keys"]):
        other_rows = id(named.get(key)) in vocabulary and tuple(saved)[1:] == tuple(wanted)[1:]
        if other_rows and not at_load and _starts_as_saved(pair, key, named[key]):
            pair.note("weights", f"{key} has {saved[0]} rows in the file and {wanted[0]} here: resized after loading")
        else:
            wrong.append(f"{key}: {list(saved)} in the file, {list(wanted)} in the model")
    if wrong:
        pair.fault("weights of another shape", ERROR,
                   "; ".join(wrong[:3]) + ": replaced by random numbers when loaded, unless trained since",
                   "load with the config of the checkpoint, without ignore_mismatched_sizes")


def _starts_as_saved(pair: _Pair, key: str, parameter) -> bool:
    """Are the first rows those of the file? Resizing keeps them, a load that ignores the mismatch draws new ones."""
    import torch
    from safetensors import safe_open

    names = {key, key.removeprefix(f"{pair.model.base_model_prefix}."), f"{pair.model.base_model_prefix}.{key}"}
    for path in sorted(pair.model_folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in names & set(file.keys()):
                saved = file.get_slice(name)[:4]
                return torch.equal(saved.to(parameter.dtype), parameter[:4].detach().cpu())
    return False


def _reloaded(pair: _Pair) -> tuple[Mapping[str, Any] | None, str]:
    """Return the loading information of the model's folder under the model's class and config, or None and why not.

    On the meta device the library compares names and shapes by its own rules (renamed, tied and ignored keys) and
    reads no weight.
    """
    if pair.model_folder is None:
        return None, "the model was not loaded from a local folder"
    if not list(pair.model_folder.glob("*.safetensors")):
        return None, "its folder holds no safetensors"
    if getattr(pair.model, "is_quantized", False):
        return None, "the model is quantized"
    with _quiet_transformers():
        try:
            _, info = type(pair.model).from_pretrained(
                pair.model_folder, config=copy.deepcopy(pair.model.config), device_map="meta",
                output_loading_info=True, ignore_mismatched_sizes=True, local_files_only=True)
        except Exception as error:  # a folder that no longer loads is news, not an end of the check
            return None, f"the folder does not load again ({type(error).__name__}: {error})"
    return info, ""


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence the loading report and progress bar, which would describe a model that is thrown away."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _class(pair: _Pair) -> None:
    """Is this the class the checkpoint was saved with, or at least one of its kind?"""
    name, saved_as = type(pair.model).__name__, list(pair.config.architectures or pair.model.config.architectures or [])
    if pair.encoder_as_decoder:
        pair.fault("encoder used as a decoder", ERROR,
                   f"{name} on an encoder: config.is_decoder is False, so every position sees the ones after it; "
                   "its body never learned to predict the next token",
                   "use AutoModel, AutoModelForMaskedLM or a classification class; to generate, load a decoder")
    elif (family := _family_of(saved_as)) not in (None, pair.config.model_type, pair.model.config.model_type):
        pair.fault("class of another family", ERROR,
                   f"the config names {saved_as[0]}, a class of the family {family!r}, and model_type "
                   f"{pair.model.config.model_type!r}, which chose {name}; names and shapes may agree, the arithmetic does not",
                   f"set model_type in config.json to {family!r}, or take config.json from the source of the weights")
    elif saved_as and name not in saved_as:
        headless = getattr(pair.model, "base_model", None) is pair.model
        tasks = [re.split(r"(?=LMHead)|For", architecture, maxsplit=1)[1:] for architecture in (saved_as[0], name)]
        if headless:
            pair.fault("head left out", WARNING,
                       f"the checkpoint was saved by {saved_as[0]}; {name} is its body: hidden states, no logits",
                       f"load it with {saved_as[0]}, unless hidden states are what you want")
        elif all(tasks) and tasks[0] != tasks[1] and tasks[0] != ["PreTraining"] and not pair.head_is_random:
            pair.fault("other class than it was saved with", WARNING,
                       f"the checkpoint was saved by {saved_as[0]} and is loaded as {name}",
                       f"load it with {saved_as[0]}, unless its head fits both tasks")
    pair.note("class", f"{name}, saved by {', '.join(saved_as)}" if saved_as else f"{name}; the config names no class")


def _family_of(saved_as: Sequence[str]) -> str | None:
    """Return the model_type to which the class that a config names belongs, or None where the library has no such class."""
    import transformers

    saved_class = getattr(transformers, saved_as[0], None) if saved_as else None
    return getattr(getattr(saved_class, "config_class", None), "model_type", None)


# --- tokenizer ------------------------------------------------------------------------------------------------------


def _tokenizer_files(pair: _Pair) -> None:
    """The tokenizer in memory must spell as the tokenizer.json of its own folder does."""
    folder = pair.tokenizer_folder
    raw = _raw_tokenizer(folder)
    if raw is None:
        pair.note("tokenizer files", "not compared: not loaded from a local folder with tokenizer.json")
        return
    settings = _json_of(folder / "tokenizer_config.json")
    if not settings and pair.tokenizer.eos_token is None and pair.tokenizer.pad_token is None:
        pair.fault("tokenizer settings missing", WARNING,
                   "its folder has tokenizer.json but no tokenizer_config.json: special tokens, length limit and chat "
                   "template are unknown", "copy every file that tokenizer.save_pretrained wrote")
    if odd := _spelled_otherwise(pair, raw):
        pair.fault("tokenizer differs from its file", ERROR,
                   f"{odd}; class {type(pair.tokenizer).__name__}, tokenizer_config.json names "
                   f"{settings.get('tokenizer_class')}",
                   "load it with PreTrainedTokenizerFast.from_pretrained, and correct tokenizer_class in the file")
    wrapped, here = raw.encode("one").ids, list(pair.tokenizer("one")["input_ids"])
    bare = raw.encode("one", add_special_tokens=False).ids
    deliberate = any(name in settings for name in ("add_bos_token", "add_eos_token"))
    if here == bare != wrapped and not deliberate:
        pair.fault("special tokens are no longer added", ERROR,
                   f"tokenizer.json turns 'one' into {wrapped}, this tokenizer into {here}; "
                   "assigning add_bos_token or add_eos_token, to any value, rebuilds the post-processor",
                   "load the tokenizer again and do not assign these; pass add_special_tokens=... where you call it")
    pair.note("tokenizer files", odd or f"{len(PROBES)} texts spelled as in its tokenizer.json")


def _same_tokenizer(pair: _Pair, probes: Mapping[str, Sequence[int]]) -> None:
    """Was the model trained with this tokenizer? Known ids and files say it outright, else the weights have to."""
    against, doubts = [], []
    for text, ids in probes.items():
        if pair.spell(text) != list(ids):
            against.append(f"probe {text!r} must give {list(ids)}, gives {pair.spell(text)}")
    if pair.model_folder and pair.model_folder != pair.tokenizer_folder:
        raw = _raw_tokenizer(pair.model_folder)
        odd = _spelled_otherwise(pair, raw) if raw else ""
        if odd:
            against.append(f"the tokenizer.json beside the model's weights disagrees: {odd}")
    known = KNOWN.get((pair.config.model_type, pair.rows, getattr(pair.config, "hidden_size", None)))
    if known and pair.spell(KNOWN_TEXT) != list(known[1]):
        doubts.append(f"{known[0]}, which has this shape, spells {KNOWN_TEXT!r} as {list(known[1])}, not "
                      f"{pair.spell(KNOWN_TEXT)}")
    fits, words = _weights_know_it(pair)
    pair.note("tokenizer of this model", words)
    if fits is False:
        against.append(words)
    if against or (doubts and fits is None):
        pair.fault("another tokenizer", ERROR if against else WARNING, "; ".join(against + doubts),
                   "load the tokenizer from the folder or repository that the weights came from")


def _weights_know_it(pair: _Pair) -> tuple[bool | None, str]:
    """Return whether the trained weights recognise this tokenizer's ids (None: cannot tell), and the evidence."""
    if pair.embedding.device.type == "meta":
        return None, "cannot tell: the weights are on the meta device"
    fits, words = evidence.partners(pair.tokenizer, pair.embedding)
    if fits or not pair.generates:
        return fits, words
    verdict, likelihood = evidence.likelihood(pair.tokenizer, pair.model)
    if verdict is None:
        return fits, words if fits is False else f"{words}; {likelihood}"
    return verdict, likelihood


def _spelled_otherwise(pair: _Pair, raw) -> str:
    """Return the first probe that `raw` (a tokenizers.Tokenizer) cuts into other ids, "" when there is none."""
    for text in PROBES:
        ids, expected = pair.spell(text), raw.encode(text, add_special_tokens=False).ids
        if ids != expected:
            at = next((i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b),
                      min(len(ids), len(expected)))
            return (f"{text!r} becomes {_window(ids, at)} here and {_window(expected, at)} by the file "
                    f"(from token {at} on)")
    return ""


def _window(ids: Sequence[int], at: int) -> str:
    return "[" + ", ".join(map(str, ids[at : at + 4])) + (", ...]" if len(ids) > at + 4 else "]")


def _raw_tokenizer(folder: Path | None):
    """Return the folder's tokenizer.json as the tokenizers library reads it, None when there is none."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_truncation()  # some files ship with padding and truncation switched on
    raw.no_padding()
    return raw


# --- template -------------------------------------------------------------------------------------------------------


def _template(pair: _Pair) -> None:
    """A model that was trained on a chat template needs one, and the template must end turns where generation stops."""
    if not pair.generates:
        pair.note("template", "not compared: the model does not generate from messages")
    elif not pair.tokenizer.chat_template:
        if signs := _signs_of_chat(pair):
            pair.fault("no chat template", ERROR, f"tokenizer.chat_template is None, yet {'; '.join(signs)}",
                       "load the tokenizer from a folder with chat_template.jinja (save_pretrained writes it beside "
                       "tokenizer_config.json); never invent a template")
        pair.note("template", "none, and no sign that the model needs one" if not signs else "none")
    else:
        _turn_end(pair)


def _signs_of_chat(pair: _Pair) -> list[str]:
    signs = []
    folder = pair.model_folder
    if folder and ((folder / "chat_template.jinja").is_file()
                   or _json_of(folder / "tokenizer_config.json").get("chat_template")):
        signs.append("there is one beside the model's weights")
    ends = [pair.tokenizer.convert_ids_to_tokens(number) for number in pair.stops() if number <= pair.highest]
    if ends := [token for token in ends if token in TURN_ENDS]:
        signs.append(f"generation stops at {ends[0]!r}, with which chat models end a turn")
    return signs


def _turn_end(pair: _Pair) -> None:
    answer = "Blue, of course."
    messages = [{"role": "user", "content": "What colour is the sky?"}, {"role": "assistant", "content": answer}]
    try:
        rendered = pair.tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:  # a template may refuse a conversation of its own accord
        pair.note("template", f"not compared: it raised {type(error).__name__}: {error}")
        return
    _, found, tail = rendered.rpartition(answer)
    stops, after = pair.stops(), pair.spell(tail)
    if not found:
        pair.fault("template drops the answer", ERROR, f"the assistant's text is not in {_clip(rendered)!r}",
                   "check the template's loop over messages")
    elif stops and not set(stops) & set(after):
        pair.fault("template and stop token disagree", ERROR,
                   f"the template ends a turn with {_clip(tail)!r} (ids {_window(after, 0)}); generation stops only at "
                   f"{_listed(pair, stops)}, so an answer never ends",
                   "use the template and the tokenizer of this checkpoint, or add the turn's end to "
                   "generation_config.eos_token_id")
    pair.note("template", f"ends a turn with {_clip(tail)!r}")


# --- small tools -----------------------------------------------------------------------------------------------------


def _local_folder(piece) -> Path | None:
    name = getattr(piece, "name_or_path", None)
    return Path(name).resolve() if name and Path(name).is_dir() else None


def _ids_of(holder, role: str) -> list[int]:
    """Return the ids that a config states for a role: none, one or several. -1 is an old spelling of none."""
    value = getattr(holder, f"{role}_token_id", None)
    values = value if isinstance(value, list | tuple) else [value]
    return [int(number) for number in values if number is not None and number != -1]


def _json_of(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _some(names: Sequence[str], limit: int = 4) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _clip(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else "…" + text[1 - limit :]
