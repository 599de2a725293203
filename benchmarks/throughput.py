"""How fast are many prompts answered? The same prompts, model and process for every way; ratios by the median of rounds.

    python run.py bench throughput            # five rounds, the table, a trace in data/traces
    python run.py bench throughput --quick    # one round of 16 prompts, no trace

The 80 first turns of MT-bench go through the chat template; each answer has a seeded length of 16 to 96 tokens and no end
token, so that every way does the same work. A way that cannot stop rows one by one is paid only for the tokens asked for.
Answers are compared with the loop's, token by token.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks import prompts as sets
from labutils import data, environment
from labutils.checkpoints import checkpoint

PAD = 0  # an id for padding: the mask hides it


class Work:
    """Model, prompts as ids, output lengths: what every way gets."""

    def __init__(self, count: int, dtype: str):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        folder = checkpoint("chat")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval().to(environment.device())
        self.model.generation_config.eos_token_id = None
        texts = sets.mt_bench()[:count]
        self.messages = [[{"role": "user", "content": text}] for text in texts]
        self.ids = [self.tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
                    for one in self.messages]
        self.lengths = sets.lengths(80)[:count]

    def batch(self, order: list[int]) -> dict[int, list[int]]:
        """Answer these prompts with one padded call of model.generate."""
        import torch

        longest = max(len(self.ids[at]) for at in order)
        ids = torch.full((len(order), longest), PAD)
        mask = torch.zeros_like(ids)
        for row, at in enumerate(order):
            ids[row, longest - len(self.ids[at]) :] = torch.tensor(self.ids[at])
            mask[row, longest - len(self.ids[at]) :] = 1
        device = self.model.device
        with torch.inference_mode():
            made = self.model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), do_sample=False,
                                       max_new_tokens=max(self.lengths[at] for at in order), pad_token_id=PAD)
        return {at: made[row, longest:].tolist()[: self.lengths[at]] for row, at in enumerate(order)}

    def batches(self, order: list[int], size: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for first in range(0, len(order), size):
            found |= self.batch(order[first : first + size])
        return found


def loop(work: Work, chosen: list[int]) -> dict[int, list[int]]:
    """One prompt after the other."""
    return work.batches(chosen, 1)


def piped(work: Work, chosen: list[int]) -> dict[int, list[int]]:
    """pipeline(batch_size=8), which knows one length for all."""
    from transformers import pipeline

    longest = max(work.lengths[at] for at in chosen)
    pipe = pipeline("text-generation", model=work.model, tokenizer=work.tokenizer, batch_size=8)
    made = pipe([work.messages[at] for at in chosen], max_new_tokens=longest, do_sample=False, return_tensors=True)
    return {at: one[0]["generated_token_ids"][-longest:][: work.lengths[at]] for at, one in zip(chosen, made, strict=True)}


def padded(work: Work, chosen: list[int]) -> dict[int, list[int]]:
    """Padded by 32, in the order of arrival."""
    return work.batches(chosen, 32)


def padded_sorted(work: Work, chosen: list[int]) -> dict[int, list[int]]:
    """Padded by 32, sorted by the length of the prompt."""
    return work.batches(sorted(chosen, key=lambda at: len(work.ids[at])), 32)


def continuous(work: Work, chosen: list[int]) -> dict[int, list[int]]:
    """transformers' continuous batching, capped at 512 blocks of 32 tokens."""
    import torch
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(max_new_tokens=max(work.lengths), do_sample=False, eos_token_id=-1, pad_token_id=PAD)
    paging = ContinuousBatchingConfig(num_blocks=512, page_size=32, max_batch_tokens=1024)
    with torch.inference_mode():
        manager = work.model.init_continuous_batching(generation_config=config, continuous_batching_config=paging)
        manager.start()
        names = {manager.add_request(work.ids[at], max_new_tokens=work.lengths[at]): at for at in chosen}
        found: dict[int, list[int]] = {}
        while len(found) < len(chosen):
            result = manager.get_result(timeout=10)
            if result is None and not manager.is_running():
                raise RuntimeError("continuous batching ended early")
            if result is not None and result.is_finished():
                found[names[result.request_id]] = result.generated_tokens
        manager.stop(block=True)
    return found


def ours(work: Work, chosen: list[int]) -> dict[int, list[int]]:
    """labutils.generation.generate."""
    from labutils.generation import generate

    result = generate(work.model, work.tokenizer, [work.ids[at] for at in chosen], eos=None, progress=False,
                      max_new_tokens=[work.lengths[at] for at in chosen])
    work.last = result
    return {at: answer.ids for at, answer in zip(chosen, result, strict=True)}


WAYS: dict[str, Callable] = {
    "loop": loop, "pipeline, 8": piped, "padded, 32": padded, "padded, sorted, 32": padded_sorted, "generate_batch": continuous,
    "ours": ours,
}


class Measured:
    """Wall seconds, processor seconds and the most resident memory of a block."""

    def __enter__(self):
        self.process, self.peak, self.ended = psutil.Process(), 0, threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()
        self.cpu, self.wall = _cpu_seconds(), time.perf_counter()
        return self

    def _watch(self) -> None:
        while not self.ended.is_set():
            self.peak = max(self.peak, self.process.memory_info().rss)
            self.ended.wait(0.05)

    def __exit__(self, *error):
        self.wall, self.cpu = time.perf_counter() - self.wall, _cpu_seconds() - self.cpu
        self.ended.set()
        self.watcher.join()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(work: Work, rounds: int, loop_prompts: int,
            said: Callable[[str], None]) -> tuple[dict[str, list[dict]], dict[str, str]]:
    """Run every way in every round; return the measurements by way, and how many answers equal the loop's."""
    everything = list(range(len(work.ids)))
    some = everything[:: max(1, len(everything) // loop_prompts)]
    measured: dict[str, list[dict]] = {name: [] for name in WAYS}
    truth, equal = {}, {}
    for number in range(rounds):
        for name, way in WAYS.items():
            # The loop takes all prompts once, for the comparison, and a sample in the other rounds.
            chosen = everything if name != "loop" or number == 0 else some
            with Measured() as one:
                made = way(work, chosen)
            tokens = sum(work.lengths[at] for at in chosen)
            measured[name].append({"tokens": tokens, "seconds": round(one.wall, 2), "cpu_seconds": round(one.cpu, 2),
                                   "peak_mb": round(one.peak / 10**6)})
            truth = truth or made
            equal[name] = f"{sum(truth[at] == made[at] for at in chosen if at in truth)} of {len(chosen)}"
            said(f"round {number + 1}, {name}: {tokens / one.wall:.1f} tokens/s, {tokens / one.cpu:.1f} per processor second, "
                 f"{one.peak / 10**6:,.0f} MB, equal {equal[name]}")
    return measured, equal


def ratios(measured: dict[str, list[dict]], seconds: str) -> dict[str, float]:
    """Return how many times the loop each way is, by the median of the rounds' ratios."""
    def rate(one: dict) -> float:
        return one["tokens"] / one[seconds]

    return {name: round(statistics.median(rate(a) / rate(b) for a, b in zip(found, measured["loop"], strict=True)), 2)
            for name, found in measured.items()}


def limits(work: Work) -> dict[str, float]:
    """Return what the matrix products alone would allow: tokens per second of reading and of decoding 64 rows."""
    import torch

    from labutils.generation import fastlinear

    device, rows = work.model.device, 64
    long, wide = torch.ones((1, 512), dtype=torch.long, device=device), torch.ones((rows, 1), dtype=torch.long, device=device)

    def rate(ids, tokens) -> float:
        times = []
        for _ in range(4):
            start = time.perf_counter()
            work.model(input_ids=ids, use_cache=False, logits_to_keep=1)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return tokens / min(times)

    with torch.inference_mode():
        found = {"read": rate(long, 512), "decode": rate(wide, rows)}
        if fastlinear.is_faster(work.model, 32):
            with fastlinear.rearranged(work.model, 32):
                found |= {"read, rearranged": rate(long, 512), "decode, rearranged": rate(wide, rows)}
    asked, new = sum(map(len, work.ids)), sum(work.lengths)
    for kind in ("", ", rearranged"):
        if f"read{kind}" in found:
            found[f"together{kind}"] = new / (asked / found[f"read{kind}"] + new / found[f"decode{kind}"])
    return {name: round(value, 1) for name, value in found.items()}


def bandwidth(device) -> float:
    """Return the bytes a second that this device reads and writes in a copy of 512 MB."""
    import torch

    source = torch.ones(2**27, dtype=torch.float32, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(times)


def machine(device) -> dict:
    """Return what the figures depend on: device, driver, versions, threads, load, date."""
    import torch
    import transformers

    found = {"device": device.type, "system": platform.system(), "processor": _processor(), "threads": torch.get_num_threads(),
             "load_average": [round(one, 1) for one in os.getloadavg()] if hasattr(os, "getloadavg") else None,
             "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version(),
             "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda,
                  "capability": ".".join(map(str, torch.cuda.get_device_capability(device)))}
        driver = Path("/proc/driver/nvidia/version")
        found["driver"] = driver.read_text().splitlines()[0] if driver.exists() else None
    return found


def _processor() -> str:
    try:
        names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def table(measured: dict[str, list[dict]], equal: dict[str, str]) -> str:
    """Return the table in words and figures."""
    wall, cpu = ratios(measured, "seconds"), ratios(measured, "cpu_seconds")
    lines = ["way                 tokens/s   times the loop   the same by processor seconds   peak MB   equal to the loop"]
    for name, found in measured.items():
        rate = statistics.median(one["tokens"] / one["seconds"] for one in found)
        peak = max(one["peak_mb"] for one in found)
        lines.append(f"{name:18} {rate:9.1f} {wall[name]:16.2f} {cpu[name]:31.2f} {peak:9,} {equal[name]:>19}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; print its table; write the trace unless it was quick."""
    parser = argparse.ArgumentParser(prog="run.py bench throughput", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, 16 prompts, no trace")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=80, help="of MT-bench's 80")
    parser.add_argument("--loop", type=int, default=12, help="prompts that the loop takes after the first round")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args(arguments)
    rounds, count = (1, 16) if args.quick else (args.rounds, args.prompts)
    work = Work(count, args.dtype)
    print(f"{count} prompts, {sum(map(len, work.ids)):,} tokens to read, {sum(work.lengths):,} to make", flush=True)
    first = machine(work.model.device)
    most = limits(work)
    measured, equal = measure(work, rounds, args.loop, lambda line: print(line, flush=True))
    copied = bandwidth(work.model.device)
    weights = sum(one.nbytes for one in work.model.parameters())
    share = work.last.steps * weights / work.last.seconds / copied
    print(f"\n{table(measured, equal)}\n\nours: {work.last}")
    print("matrix products alone, tokens/s: " + ", ".join(f"{name} {value}" for name, value in most.items()))
    print(f"memory bandwidth {copied / 10**9:.1f} GB/s; reading the weights once a step takes {share:.0%} of it")
    if args.quick:
        return 0
    trace = {"machine": first, "dtype": args.dtype, "prompts": count, "prompts_sha256": sets.sha256(work.ids),
             "prompt_tokens": sum(map(len, work.ids)), "new_tokens": sum(work.lengths), "rounds": rounds,
             "ways": measured, "times_the_loop": ratios(measured, "seconds"),
             "times_the_loop_by_processor_seconds": ratios(measured, "cpu_seconds"), "equal_to_the_loop": equal,
             "matrix_products_alone": most, "bandwidth_gb_per_s": round(copied / 10**9, 1),
             "share_of_bandwidth": round(share, 3), "ours": work.last.summary().splitlines()}
    name = re.sub(r"[^a-z0-9]+", "-", first.get("gpu", first["device"]).lower()).strip("-")
    path = data.root() / "traces" / f"throughput_{name}.json"
    path.write_text(json.dumps(trace, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
