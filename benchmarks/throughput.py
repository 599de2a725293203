"""How fast are many prompts answered? The same prompts, model and process for every way; ratios by the median of rounds.

    python run.py bench throughput            # five rounds, the table, a trace in data/traces
    python run.py bench throughput --quick    # one round of 16 prompts, no trace
    python run.py bench throughput --vllm ~/vllm/bin/python --llama ~/llama/bin/python    # and two engines of others

The 80 first turns of MT-bench (with --set ours: data/prompts.jsonl) go through the chat template; each answer has a seeded
length of 16 to 96 tokens and no end token, so that every way does the same work. A way that cannot stop rows one by one is
paid only for the tokens asked for. Answers are compared with the loop's, token by token. vLLM and llama.cpp take part where
they are installed, with the same ids and the same precision, each in a process of its own (benchmarks/peers).
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks import peers
from benchmarks import prompts as sets
from labutils import data, environment
from labutils.checkpoints import checkpoint

PAD = 0  # an id for padding: the mask hides it
SETS = {"mtbench": ("MT-bench", sets.mt_bench), "ours": ("data/prompts.jsonl", sets.ours)}


class Work:
    """Model, prompts as ids, output lengths: what every way gets."""

    def __init__(self, count: int, dtype: str, source: str = "mtbench"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        folder = checkpoint("chat")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval().to(environment.device())
        self.model.generation_config.eos_token_id = None
        texts = SETS[source][1]()[:count]
        self.messages = [[{"role": "user", "content": text}] for text in texts]
        self.ids = [self.tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
                    for one in self.messages]
        self.lengths = sets.lengths(80)[:count]
        self.last = None    # what our way returned last

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
    """Wall seconds, processor seconds and the most resident memory of a block, of this process or of an engine's family.

    An engine may be several processes: they are added up, and pages that they share are counted once where the system
    says which these are (Linux).
    """

    def __init__(self, engine: psutil.Process | None = None):
        self.engine, self.peak, self.ended = engine, 0, threading.Event()

    def __enter__(self):
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()
        self.cpu, self.wall = self._cpu_seconds(), time.perf_counter()
        return self

    def _family(self) -> list[psutil.Process]:
        return [self.engine, *self.engine.children(recursive=True)]

    def _memory(self) -> int:
        if not self.engine:
            return psutil.Process().memory_info().rss
        found = [one.memory_full_info() for one in self._family()]
        return sum(getattr(one, "pss", one.rss) for one in found)

    def _watch(self) -> None:
        while not self.ended.is_set():
            with contextlib.suppress(psutil.Error):     # a process that has just ended
                self.peak = max(self.peak, self._memory())
            self.ended.wait(0.5 if self.engine else 0.05)

    def _cpu_seconds(self) -> float:
        if not self.engine:
            used = resource.getrusage(resource.RUSAGE_SELF)
            return used.ru_utime + used.ru_stime
        try:
            return sum(sum(one.cpu_times()[:2]) for one in self._family())
        except psutil.NoSuchProcess:    # the engine is gone: what it was asked says so
            return float("nan")

    def __exit__(self, *error):
        self.wall, self.cpu = time.perf_counter() - self.wall, self._cpu_seconds() - self.cpu
        self.ended.set()
        self.watcher.join()


def evenly(everything: list[int], count: int) -> list[int]:
    """Return `count` of these, evenly spread: MT-bench is sorted by topic, ours by kind. The same ones each time."""
    count = min(count, len(everything))
    return [everything[number * len(everything) // count] for number in range(count)]


class Results:
    """What was measured by way, how many answers equal the loop's, and which way failed, with the reason."""

    def __init__(self):
        self.measured: dict[str, list[dict]] = {}
        self.equal: dict[str, str] = {}
        self.failed: dict[str, str] = {}


def measure(work: Work, ways: dict[str, Callable], rounds: int, samples: dict[str, int],
            said: Callable[[str], None]) -> Results:
    """Run every way in every round. A way that fails is reported and left out of the rounds after; the loop has to run.

    samples: prompts that a slow way takes after the first round, in which each takes all, for the comparison of answers.
    """
    everything, truth, results = list(range(len(work.ids))), {}, Results()
    for number in range(rounds):
        for name, way in ways.items():
            if name in results.failed:
                continue
            chosen = evenly(everything, samples[name]) if name in samples and number else everything
            try:
                with Measured(getattr(way, "process", None)) as one:
                    made = way(work, chosen)
            except Exception as error:
                if name == "loop":
                    raise
                results.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                said(f"round {number + 1}, {name}: failed and is left out from here: {results.failed[name]}")
                continue
            wall = getattr(way, "seconds", one.wall)    # an engine measures inside its own process
            tokens = sum(work.lengths[at] for at in chosen)
            truth = truth or made
            equal = sum(truth[at] == made[at] for at in chosen)
            results.measured.setdefault(name, []).append({
                "prompts": len(chosen), "tokens": tokens, "seconds": round(wall, 2), "cpu_seconds": round(one.cpu, 2),
                "peak_mb": round(one.peak / 10**6), "equal": equal})
            results.equal.setdefault(name, f"{equal} of {len(chosen)}")     # of the first round, which takes all
            said(f"round {number + 1}, {name}: {tokens / wall:.1f} tokens/s, {tokens / one.cpu:.1f} per processor second, "
                 f"{one.peak / 10**6:,.0f} MB, equal {equal} of {len(chosen)}")
    return results


def ratios(measured: dict[str, list[dict]], seconds: str) -> dict[str, float]:
    """Return how many times the loop each way is, by the median of the rounds' ratios (of those before it failed)."""
    def rate(one: dict) -> float:
        return one["tokens"] / one[seconds]

    return {name: round(statistics.median(rate(a) / rate(b) for a, b in zip(found, measured["loop"], strict=False)), 2)
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


def table(results: Results, title: str) -> str:
    """Return the table in words and figures."""
    wall, cpu = ratios(results.measured, "seconds"), ratios(results.measured, "cpu_seconds")
    lines = [title,
             "way                 tokens/s   times the loop   the same by processor seconds   peak MB   equal to the loop"]
    for name, found in results.measured.items():
        rate = statistics.median(one["tokens"] / one["seconds"] for one in found)
        peak = max(one["peak_mb"] for one in found)
        lines.append(f"{name:18} {rate:9.1f} {wall[name]:16.2f} {cpu[name]:31.2f} {peak:9,} {results.equal[name]:>19}")
    return "\n".join([*lines, *(f"{name:18} failed: {why}" for name, why in results.failed.items())])


def engines(work: Work, args: argparse.Namespace, threads: int, opened: contextlib.ExitStack,
            said: Callable[[str], None]) -> dict[str, peers.Peer]:
    """Start the engines of others that are installed; say for each why not, or that it is ready. `opened` ends them."""
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="throughput")))
    device = work.model.device.type
    starts = {
        "vllm": (args.vllm, "", lambda: peers.vllm(work, args.vllm, args.dtype, threads)),
        "xllamacpp": (args.llama, peers.left_out_llama(args.dtype, device),
                      lambda: peers.llama(work, args.llama, args.dtype, threads, folder)),
    }
    found = {}
    for package, (python, refused, start) in starts.items():
        refused = refused or peers.missing(package, python)
        if refused:
            said(refused)
            continue
        try:
            peer = start()
        except peers.PeerError as error:
            said(f"{peers.TITLES[package]} is left out: {error}")
            continue
        opened.callback(peer.close)
        found[peer.title] = peer
        said(f"{peer.title} ({package} {peer.version}) is ready, after {peer.start_seconds:.0f} s")
    return found


def interpreter(text: str) -> str:
    """Return a name that also holds in another folder: a path made absolute, not followed (a venv is known by its link)."""
    return str(Path(text).expanduser().absolute()) if Path(text).name != text else text


def options(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="run.py bench throughput", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, 16 prompts, no trace")
    parser.add_argument("--set", choices=sorted(SETS), default="mtbench", help="MT-bench's first turns, or data/prompts.jsonl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=80, help="of the set's 80")
    parser.add_argument("--later", type=int, default=80, help="prompts that every way takes after the first round, at most")
    parser.add_argument("--loop", type=int, default=8, help="prompts that the loop takes after the first round")
    parser.add_argument("--pipeline", type=int, default=16, help="prompts that the pipeline takes after the first round")
    parser.add_argument("--dtype", default="float32")
    for option, package in (("--vllm", "vLLM"), ("--llama", "xllamacpp")):
        parser.add_argument(option, metavar="PYTHON", type=interpreter, default=sys.executable,
                            help=f"an interpreter that has {package}; this one unless told")
    args = parser.parse_args(arguments)
    if args.quick:
        args.rounds, args.prompts = 1, min(args.prompts, 16)
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; print its table; write the trace unless it was quick."""
    args = options(arguments)

    def said(line: str) -> None:
        print(line, flush=True)

    work = Work(args.prompts, args.dtype, args.set)
    reading, new = sum(map(len, work.ids)), sum(work.lengths)
    title = f"{SETS[args.set][0]}: {args.prompts} prompts, {reading:,} tokens to read, {new:,} to make, {args.dtype}"
    said(title)
    first = machine(work.model.device)
    most = limits(work)
    with contextlib.ExitStack() as opened:
        others = engines(work, args, first["threads"], opened, said)
        ways = WAYS | others
        few = {"loop": args.loop, "pipeline, 8": args.pipeline}
        samples = {name: min(few.get(name, args.later), args.later, args.prompts) for name in ways}
        results = measure(work, ways, args.rounds, samples, said)
    said(f"\n{table(results, title)}\n")
    said("matrix products alone, tokens/s: " + ", ".join(f"{name} {value}" for name, value in most.items()))
    trace = {"machine": first, "dtype": args.dtype, "set": args.set, "prompts": args.prompts,
             "prompts_sha256": sets.sha256(work.ids), "prompt_tokens": reading, "new_tokens": new, "rounds": args.rounds,
             "prompts_after_the_first_round": samples, "engines": {name: one.version for name, one in others.items()},
             "ways": results.measured, "failed": results.failed, "times_the_loop": ratios(results.measured, "seconds"),
             "times_the_loop_by_processor_seconds": ratios(results.measured, "cpu_seconds"),
             "equal_to_the_loop": results.equal, "matrix_products_alone": most} | share_of_bandwidth(work, said)
    return 0 if args.quick else keep(trace)


def share_of_bandwidth(work: Work, said: Callable[[str], None]) -> dict:
    """Say and return how much of the memory bandwidth our way takes by reading the weights once a step."""
    copied = bandwidth(work.model.device)
    found: dict = {"bandwidth_gb_per_s": round(copied / 10**9, 1)}
    if work.last is None:
        said(f"memory bandwidth {copied / 10**9:.1f} GB/s")
        return found
    weights = sum(one.nbytes for one in work.model.parameters())
    share = work.last.steps * weights / work.last.seconds / copied
    said(f"ours: {work.last}")
    said(f"memory bandwidth {copied / 10**9:.1f} GB/s; reading the weights once a step takes {share:.0%} of it")
    return found | {"share_of_bandwidth": round(share, 3), "ours": work.last.summary().splitlines()}


def keep(trace: dict) -> int:
    """Write the trace, one file by device and set."""
    machine = trace["machine"]
    name = re.sub(r"[^a-z0-9]+", "-", machine.get("gpu", machine["device"]).lower()).strip("-")
    path = data.root() / "traces" / f"throughput_{name}{'' if trace['set'] == 'mtbench' else '_' + trace['set']}.json"
    path.write_text(json.dumps(trace, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
