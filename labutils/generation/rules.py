"""From logits to the next token: what the model's generation_config and the caller ask for, row by row.

Every row is treated as `model.generate` treats it when it is alone, with no pad token in sight. A setting that this
package does not follow is refused by name, never dropped.
"""

import copy
from dataclasses import dataclass, field

from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from labutils.errors import SettingError

# What changes the tokens and is not followed here, with the value that means "off" besides None.
REFUSED = {
    "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "penalty_alpha": 0, "guidance_scale": 1,
    "dola_layers": None, "sequence_bias": None, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None,
    "renormalize_logits": False, "remove_invalid_values": False, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "top_h": None, "watermarking_config": None, "token_healing": False, "max_time": None, "constraints": None,
    "force_words_ids": None,
}
OTHER_NAMES = {"max_tokens": "max_new_tokens", "max_length": "max_new_tokens", "max_completion_tokens": "max_new_tokens",
               "n_predict": "max_new_tokens", "num_predict": "max_new_tokens", "stop_strings": "stop",
               "eos_token_id": "eos", "num_beams": "nothing: beams are not supported"}


@dataclass
class Rules:
    """How the next token is chosen. `row` settings see the ids of one row, `warpers` only its scores."""

    config: object
    eos: frozenset[int]
    stop: tuple[str, ...]
    do_sample: bool
    warpers: LogitsProcessorList
    row_wise: bool
    notes: list[str] = field(default_factory=list)

    def row_processors(self, prompt_tokens: int, device) -> LogitsProcessorList:
        """Return the processors that look at a row's ids, in the order in which `generate` applies them."""
        config, eos, found = self.config, sorted(self.eos), LogitsProcessorList()
        if config.repetition_penalty not in (None, 1.0):
            found.append(RepetitionPenaltyLogitsProcessor(penalty=config.repetition_penalty))
        if config.no_repeat_ngram_size:
            found.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        if config.bad_words_ids is not None:
            found.append(NoBadWordsLogitsProcessor(config.bad_words_ids, eos or None))
        if config.min_length and eos:
            found.append(MinLengthLogitsProcessor(config.min_length, eos, device=device))
        if config.min_new_tokens and eos:
            found.append(MinNewTokensLengthLogitsProcessor(prompt_tokens, config.min_new_tokens, eos, device=device))
        if config.suppress_tokens is not None:
            found.append(SuppressTokensLogitsProcessor(config.suppress_tokens, device=device))
        if config.begin_suppress_tokens is not None:
            found.append(SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, prompt_tokens, device=device))
        return found


def settle(model, tokenizer, *, stop=None, eos="model", **settings) -> Rules:
    """Return the rules that hold for this call: the caller's settings first, then the model's, then the library's.

    settings: do_sample, temperature, top_k, top_p, min_p, repetition_penalty, no_repeat_ngram_size, min_new_tokens.
    Raises SettingError for a setting that is not followed here, wherever it comes from.
    """
    config = copy.deepcopy(model.generation_config)
    defaults = config._get_default_generation_params() if hasattr(config, "_get_default_generation_params") else {}
    for name, value in defaults.items():
        if getattr(config, name, None) is None:
            setattr(config, name, value)
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        setattr(config, name, value)
    _refuse(config)
    _check_sampling(config, given)
    ends = _ends(config.eos_token_id if isinstance(eos, str) and eos == "model" else eos)
    found = Rules(config, ends, _stops(stop, config), bool(config.do_sample), _warpers(config), row_wise=False)
    found.row_wise = bool(found.row_processors(1, "cpu"))
    if isinstance(eos, str):
        found.notes += _end_notes(ends, tokenizer)
    return found


def unknown(names) -> SettingError:
    """Return the error for arguments that `generate` does not have, with the name that was meant."""
    hints = [f"{name} (here: {OTHER_NAMES[name]})" if name in OTHER_NAMES else name for name in names]
    return SettingError(f"generate() has no {', '.join(hints)}.")


def _refuse(config) -> None:
    for name, off in REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and value != off:
            raise SettingError(f"generation_config.{name} is {value!r}, which this function does not follow. "
                               f"Set model.generation_config.{name} to {off!r}, or use model.generate.")
    if getattr(config, "cache_implementation", None) == "quantized":
        raise SettingError("generation_config.cache_implementation is 'quantized', which changes the answers. Set it to None.")


def _check_sampling(config, given: dict) -> None:
    read = [name for name in ("temperature", "top_k", "top_p", "min_p") if name in given]
    if read and not config.do_sample:
        raise SettingError(f"{', '.join(read)} would have no effect: they are read only when sampling. Add do_sample=True, "
                           "or leave them out for greedy decoding.")
    if config.do_sample and config.temperature is not None and not config.temperature > 0:
        raise SettingError(f"temperature is {config.temperature!r}; sampling needs more than 0. For greedy decoding pass "
                           "do_sample=False and no temperature.")


def _warpers(config) -> LogitsProcessorList:
    found = LogitsProcessorList()
    if not config.do_sample:
        return found
    if config.temperature not in (None, 1.0):
        found.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k not in (None, 0):
        found.append(TopKLogitsWarper(top_k=config.top_k))
    if config.top_p is not None and config.top_p < 1.0:
        found.append(TopPLogitsWarper(top_p=config.top_p))
    if getattr(config, "min_p", None) is not None:
        found.append(MinPLogitsWarper(min_p=config.min_p))
    return found


def _ends(eos) -> frozenset[int]:
    if eos is None:
        return frozenset()
    found = [eos] if isinstance(eos, int) else list(eos.tolist() if hasattr(eos, "tolist") else eos)
    if not all(isinstance(one, int) for one in found):
        raise SettingError(f"eos is {eos!r}. Give a token id, a list of them, or None for no end.")
    return frozenset(found)


def _stops(stop, config) -> tuple[str, ...]:
    found: list[str] = []
    for each in (stop, getattr(config, "stop_strings", None)):
        found += [each] if isinstance(each, str) else list(each or [])
    if not all(isinstance(one, str) and one for one in found):
        raise SettingError(f"stop is {stop!r}. Give a text or a list of texts, none of them empty.")
    return tuple(dict.fromkeys(found))


def _end_notes(ends: frozenset[int], tokenizer) -> list[str]:
    own = tokenizer.eos_token_id
    if own is None or own in ends:
        return []
    return [f"the tokenizer ends a turn with {tokenizer.eos_token!r} (id {own}), the model's generation_config only with "
            f"{sorted(ends)}: answers may run on. Pass eos={sorted({*ends, own})}."]
