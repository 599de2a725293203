"""Hold labutils.trace against what torch's CPU allocator really hands out; writes data/arithmetic/trace.csv.

    python tools/verify_trace.py [TYPE ...]     # needs torch and transformers; about five minutes for all

Each small model is traced on the meta device, then run with real values under torch's memory profiler, which sees every
allocation of the CPU allocator, those inside kernels included. The peaks are compared for both attention
implementations.
"""

import argparse
import contextlib
import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import torch  # noqa: E402
import verify_arithmetic as real  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from labutils import trace  # noqa: E402

TABLE = ROOT / "data" / "arithmetic" / "trace.csv"
BATCH, PROMPT = 2, 96
TYPES = [
    "apertus",
    "arcee",
    "biogpt",
    "bloom",
    "codegen",
    "cohere",
    "cohere2",
    "cwm",
    "ernie4_5",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "granite",
    "helium",
    "llama",
    "ministral3",
    "mistral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
]


def real_peak(model: torch.nn.Module) -> int:
    """Return the most bytes that the CPU allocator had handed out while the model read a prompt."""
    ids = torch.zeros((BATCH, PROMPT), dtype=torch.long)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    alive = peak = 0
    for _, size in events:
        alive += size
        peak = max(peak, alive)
    del output
    return peak


def compare(model_type: str, attention: str) -> dict:
    """Return one line of the table: traced and real peak of the prompt, in bytes, and their ratio."""
    for values in (real.candidates(model_type)[2], real.candidates(model_type)[0]):  # a tiny one, else a small one
        with contextlib.suppress(Exception):
            config = real.prepare(model_type, values)
            traced = trace.trace(config, BATCH, PROMPT, torch.float32, attention)
            break
    else:
        raise RuntimeError("it cannot be traced")
    model = real.AutoModelForCausalLM.from_config(
        real.prepare(model_type, values), dtype=torch.float32, attn_implementation=attention
    ).eval()
    peak = real_peak(model)
    return {
        "type": model_type,
        "attention": attention,
        "traced": traced.prefill,
        "real": peak,
        "ratio": f"{traced.prefill / peak:.4f}",
    }


def main() -> int:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("types", nargs="*")
    types = parser.parse_args().types
    lines = []
    for model_type in types or TYPES:
        for attention in ("eager", "sdpa"):
            try:
                lines.append(compare(model_type, attention))
            except Exception as error:
                print(f"{model_type} {attention}: {type(error).__name__}: {str(error)[:150]}", flush=True)
                continue
            print(*lines[-1].values(), flush=True)
    if not types:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["type", "attention", "traced", "real", "ratio"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    within = sum(abs(float(line["ratio"]) - 1) <= 0.05 for line in lines)
    print(
        f"{within} of {len(lines)} within 5 %, "
        f"{sum(line['traced'] == line['real'] for line in lines)} equal to the byte"
    )
    return 0 if within == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
