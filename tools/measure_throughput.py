"""Measure once how fast this machine writes with the chat checkpoint, by batch size; lesson 11 shows the result.

    python -m tools.measure_throughput            data/traces/batch_curve_cpu.json, or _gpu where torch finds one
    python -m tools.measure_throughput --summary  only print what is stored

Rows of 48 real tokens out of data/prompts.jsonl, 12 new tokens each, float32 on a CPU and environment.dtype's choice on a
GPU. Sizes are measured in turn, several times around, and the least of each counts: a neighbour on the machine can only slow
a run down. About three minutes on one core.
"""

import argparse
import hashlib
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from labutils import throughput
from tools.course import ROOT

BATCHES = {throughput.CPU: (1, 2, 4, 8, 16, 32), throughput.GPU: (1, 2, 4, 8, 16, 32, 64, 128)}
PROMPTS = ROOT / "data" / "prompts.jsonl"
SETTINGS = {"prompt": 48, "new": 12, "repeat": 6}


def stored(kind: str) -> Path:
    return ROOT / "data" / "traces" / f"batch_curve_{kind}.json"


def processor() -> str:
    """Return what the system calls its first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine(device: str) -> dict[str, str]:
    """Return what a later reader has to know of the machine."""
    import torch

    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        return {"device": found.name, "memory": f"{found.total_memory / 1e9:.1f} GB", "driver": str(torch.version.cuda)}
    return {"device": processor(), "threads": str(torch.get_num_threads()), "cores": str(os.cpu_count())}


def record() -> tuple[str, dict]:
    """Return the kind of machine and the file's content: when, with what and on what, and the curve."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from labutils import environment
    from labutils.checkpoints import checkpoint

    device = environment.device()
    kind = throughput.CPU if device == "cpu" else throughput.GPU
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
    model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=environment.dtype()).to(device)
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    ids = [tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True,
                                         return_dict=False) for prompt in prompts]
    about = machine(device)
    today = datetime.now(UTC).date().isoformat()
    name = f"{about['device']}, {about['threads']} thread(s), {today}" if kind == "cpu" else f"{about['device']}, {today}"
    curve = throughput.measure(model, ids, BATCHES[kind], name=name.replace("1 thread(s)", "1 thread"), **SETTINGS)
    return kind, {
        "measured": today, "checkpoint": f"chat, {environment.profile()} profile",
        "machine": about, "dtype": str(model.dtype).removeprefix("torch."), "settings": SETTINGS,
        "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0],
                     "transformers": transformers.__version__},
        "prompts_sha256": hashlib.sha256(PROMPTS.read_bytes()).hexdigest(),
        "curve": throughput.as_json(curve),
    }


def summary(kind: str) -> None:
    kept = json.loads(stored(kind).read_text(encoding="utf-8"))
    curve = throughput.recorded(kind)
    print(f"{curve.name}, {kept['dtype']}: {curve.bandwidth / 1e9:.1f} GB/s, {curve.flops / 1e9:.0f} GFLOPS, "
          f"rows are free up to {curve.free_rows:.1f}")
    for point in curve.points:
        floor = max(curve.memory_seconds(point.batch), curve.compute_seconds(point.batch))
        print(f"batch {point.batch:4}: prefill {point.prefill:7.3f} s, step {point.step * 1e3:7.1f} ms, "
              f"{point.batch / point.step:8.1f} tokens/s decoding, {floor / point.step:4.0%} of the limit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--summary", action="store_true", help="print what is stored and stop")
    if not parser.parse_args().summary:
        kind, content = record()
        draft = stored(kind).with_suffix(".tmp")
        draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(draft, stored(kind))
    for kind in (throughput.CPU, throughput.GPU):
        if stored(kind).exists():
            summary(kind)


if __name__ == "__main__":
    main()
