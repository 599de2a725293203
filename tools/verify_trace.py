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

from labutils import checkpoints, trace  # noqa: E402

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
    "deepseek_v2",
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
    "minicpm3",
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
    "youtu",
]


def real_peak(model: torch.nn.Module) -> int:
    """Return the most bytes that the CPU allocator had handed out while the model read a prompt."""
    ids = torch.zeros((BATCH, PROMPT), dtype=torch.long)
    more = {"use_cache": True, "logits_to_keep": 1} if model.can_generate() else {}
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = model(input_ids=ids, **more)
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


# The bundled checkpoints and the class that reads each.
BUNDLED = {"chat": "AutoModelForCausalLM", "encoder": "AutoModel", "sentiment": "AutoModelForSequenceClassification"}


def bundled(role: str, attention: str) -> dict:
    """Return a line of the table for a bundled checkpoint's architecture (its weights' values do not matter)."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(checkpoints.checkpoint(role))
    peaks = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            build = getattr(transformers, BUNDLED[role]).from_config
            model = build(config, dtype=torch.float32, attn_implementation=attention).eval()
        traced = device == "meta"
        peaks.append(trace.trace_model(model, BATCH, PROMPT, attention).prefill if traced else real_peak(model))
    return line(f"{config.model_type} ({role})", attention, *peaks)


def line(name: str, attention: str, traced: int, peak: int) -> dict:
    return {"type": name, "attention": attention, "traced": traced, "real": peak, "ratio": f"{traced / peak:.4f}"}


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
    return line(model_type, attention, traced.prefill, peak)


def main() -> int:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("types", nargs="*")
    types = parser.parse_args().types
    lines = []
    for model_type in types or [*BUNDLED, *TYPES]:
        for attention in ("eager", "sdpa"):
            try:
                lines.append((bundled if model_type in BUNDLED else compare)(model_type, attention))
            except Exception as error:
                print(f"{model_type} {attention}: {type(error).__name__}: {str(error)[:150]}", flush=True)
                continue
            print(*lines[-1].values(), flush=True)
    if not types:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["type", "attention", "traced", "real", "ratio"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    within = sum(abs(float(one["ratio"]) - 1) <= 0.05 for one in lines)
    print(
        f"{within} of {len(lines)} within 5 %, "
        f"{sum(one['traced'] == one['real'] for one in lines)} equal to the byte"
    )
    return 0 if within == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
