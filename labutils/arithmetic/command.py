"""`labutils plan`: what a model takes and whether it fits, as a table for people or as JSON."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from labutils.arithmetic.config import parse
from labutils.arithmetic.errors import ConfigError
from labutils.arithmetic.planning import Plan, plan
from labutils.arithmetic.quantized import SCHEMES
from labutils.arithmetic.tracing import ATTENTION
from labutils.errors import LabError


def add(commands: argparse._SubParsersAction) -> None:
    """Add `plan` to the subcommands of `labutils`."""
    command = commands.add_parser(
        "plan",
        help="what a model takes in memory, from its config alone",
        description="Exact bytes of weights, cache and logits from a config.json; no torch, no weights. GB is 10**9 "
        "bytes, GiB is 2**30.",
    )
    command.add_argument("config", help="a config.json, a folder with one, a .gguf file, - for standard input, or a Hub id")
    command.add_argument("--context", type=int, default=4096, help="tokens of prompt and answer (default: 4096)")
    command.add_argument("--batch", type=int, default=1, help="sequences at once (default: 1)")
    command.add_argument("--dtype", help="float32, bfloat16, float16, ... (default: what the config says)")
    command.add_argument("--quantization", help=f"{', '.join(SCHEMES)} (default: what the config says)")
    command.add_argument("--memory", help="memory of the device, e.g. 24GB or 24GiB")
    command.add_argument(
        "--encoder", type=int, help="input tokens of an encoder-decoder (default: as many as --context)"
    )
    command.add_argument(
        "--trace", action="store_true", help="add activations and score matrices, by a run on the meta device (needs torch)"
    )
    command.add_argument(
        "--attention", choices=ATTENTION, default="sdpa", help="the attention that --trace runs (default: sdpa)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; the exit code is 0 when it fits (or no memory was given), 1 when not, 2 after bad input."""
    try:
        found = plan(
            _source(args.config),
            args.memory,
            args.dtype,
            args.quantization,
            args.batch,
            args.context,
            args.encoder,
            args.trace,
            args.attention,
        )
    except LabError as error:
        print(f"labutils: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(found), indent=2) if args.json else as_text(found))
    return 1 if found.fits is False else 0


def _source(text: str) -> object:
    """Return what `plan` reads: a parsed config from standard input, a path, or the path of a Hub config."""
    if text == "-":
        return parse(sys.stdin.read(), "standard input")
    path = Path(text)
    if path.exists() or text.count("/") != 1 or text.endswith((".json", ".gguf")) or text.startswith((".", "/", "~")):
        return path.expanduser()
    from labutils import environment

    if environment.profile() != "hub":
        raise ConfigError(f"there is no file or folder {text!r}; to read it from the Hub, set LAB_PROFILE=hub")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(text, "config.json"))
    except Exception as error:  # the client raises many types; each has its reason in the text
        raise ConfigError(
            f"the config of {text!r} cannot be had from the Hub: {' '.join(str(error).split())[:200]}"
        ) from None


def as_json(found: Plan) -> dict:
    """Return a plan as JSON holds it, all amounts in bytes."""
    layers = [asdict(layer) for layer in found.cache.layers]
    return {
        "model_type": found.model_type,
        "family": found.family,
        "dtype": found.dtype,
        "quantization": found.scheme,
        "batch": found.batch,
        "context": found.context,
        "parameters": found.parameters,
        "weights": {**asdict(found.weights), "total": found.weights.total},
        "cache": {
            "kinds": found.cache.kinds(),
            "bytes": found.cache.bytes,
            "held_after_prefill": found.cache.held_after_prefill,
            "held_while_decoding": found.decoding,
            "layers": layers,
        },
        "logits": found.logits,
        "total": found.total,
        "memory": found.memory,
        "fits": found.fits,
        "largest_batch": found.largest_batch,
        "longest_context": found.longest_context,
        "exact": list(found.exact),
        "traced": list(found.traced),
        "attention": found.attention,
        "peak_prefill": found.peak_prefill,
        "peak_decode": found.peak_decode,
        "not_counted": list(found.not_counted),
        "assumed": list(found.assumed),
        "positions": found.positions,
    }


def as_text(found: Plan) -> str:
    """Return a plan as a table for people."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in found.cache.kinds().items())
    lines = [
        f"{found.model_type}: {found.parameters:,} parameters, {found.dtype}"
        + (f", quantized {found.scheme}" if found.scheme != "none" else ""),
        f"batch {found.batch:,}, context {found.context:,} tokens, layers: {kinds}",
        "",
        f"{'part':<24}{'bytes':>22}{'GB':>10}{'GiB':>10}",
        *(
            _line(name, amount)
            for name, amount in (
                ("weights", found.weights.total),
                ("  quantized and scales", found.weights.quantized + found.weights.scales),
                ("cache (peak)", found.cache.peak),
                ("  while decoding", found.decoding),
                ("logits of one step", found.logits),
                ("peak of prefill", found.peak_prefill),
                ("peak of decode", found.peak_decode),
                ("total", found.total),
            )
            if amount is not None and (amount or not name.startswith(" "))
        ),
    ]
    if found.scheme == "gguf":
        lines += ["", "Weights in their blocks, as llama.cpp holds them. transformers expands them: --quantization none."]
    if found.memory is not None:
        lines += [_line("memory", found.memory), "", _verdict(found)]
    if found.assumed:
        lines += [
            "",
            f"Not in the config, taken from the defaults of transformers: {', '.join(dict.fromkeys(found.assumed))}.",
        ]
    if found.positions and found.context > found.positions:
        lines += [
            "",
            f"The model was made for {found.positions:,} positions; a context of {found.context:,} is beyond them.",
        ]
    said = [f"Exact: {', '.join(found.exact)}."] if found.exact else []
    if found.traced:
        said.append(
            f"Traced on the meta device with {found.attention} attention: {', '.join(found.traced)}; "
            "a peak is beyond the weights, with cache and logits in it."
        )
    return "\n".join([*lines, "", *said, "Not counted: " + "; ".join(found.not_counted) + "."])


def _line(name: str, amount: int) -> str:
    return f"{name:<24}{amount:>22,}{amount / 10**9:>10.3f}{amount / 2**30:>10.3f}"


def _verdict(found: Plan) -> str:
    if found.fits:
        return (
            f"It fits. Largest batch at this context: {found.largest_batch:,}. "
            f"Longest context at this batch: {found.longest_context:,} tokens{_beyond(found)}."
        )
    short = f"It does not fit: {(found.total - found.memory) / 10**9:.3f} GB too much."
    if found.largest_batch or found.longest_context:
        return (
            f"{short} Largest batch at this context: {found.largest_batch:,}. "
            f"Longest context at this batch: {found.longest_context:,} tokens{_beyond(found)}."
        )
    return f"{short} Not even one token fits."


def _beyond(found: Plan) -> str:
    """Memory may have room for more tokens than the model has positions."""
    few = found.positions and found.longest_context and found.longest_context > found.positions
    return f" (by memory; the model was made for {found.positions:,})" if few else ""
