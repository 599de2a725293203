"""Who holds my memory: what keeps a model or tensor alive in a notebook, how to let go of it, and how much is resident.

`del model` removes one name. The notebook itself keeps every result that a cell displayed and the last traceback with all
its frames; a tensor with a graph keeps the weights it was computed from.
"""

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

DEPTH = 4                                   # containers in containers, objects in attributes
REMEMBERED = re.compile(r"_+\d*|_oh|Out")   # where IPython keeps what cells displayed


def resident() -> int:
    """Return the bytes of this process that are in main memory now."""
    import psutil

    return psutil.Process().memory_info().rss


def holders(target: Any) -> list[str]:
    """Return what in this notebook keeps `target` alive, in words: a module, or a storage (`tensor.untyped_storage()`).

    None, what a dead weak reference gives, is held by nothing. A tensor holds its storage, whichever tensor it is.

    Looked at: the notebook's names, what cells displayed, and the last traceback. Containers, modules, bound methods,
    exceptions and the graphs of tensors are followed. The caller's own reference is not counted.
    """
    if target is None:
        return []
    shell = _shell()
    names = shell.user_ns if shell else sys._getframe(1).f_globals
    found = [f"the name {name}" + _through(value, target) for name, value in list(names.items())
             if not REMEMBERED.fullmatch(name) and _holds(value, target)]
    if shell:
        cells = sorted(cell for cell, value in names.get("Out", {}).items() if _holds(value, target))
        found += [f"the displayed result of cell {cell}: Out[{cell}], _{cell}" for cell in cells]
        if any(_holds(names.get(name), target) for name in ("_", "__", "___")):
            found.append("the last displayed results: _, __, ___")
    for trace in _tracebacks(shell):
        for frame in _frames(trace):
            held = [name for name, value in frame.f_locals.items() if frame.f_locals is not names and _holds(value, target)]
            if held and frame.f_code.co_name != "<module>":
                found.append(f"the last traceback: {held[0]} in {frame.f_code.co_name}()")
                break
    return list(dict.fromkeys(found))


def forget() -> None:
    """Let go of what the notebook remembers: displayed results and the last traceback. Names of yours stay.

    Then collects cycles and gives back what the allocators keep in reserve: torch's on an accelerator, the C library's
    in main memory (glibc only; elsewhere the system decides).
    """
    shell = _shell()
    if shell:
        shell.user_ns.get("Out", {}).clear()
        for names in (shell.user_ns, shell.user_ns_hidden):
            for name in [name for name in names if re.fullmatch(r"_\d+", name)]:
                del names[name]
            names.update({name: "" for name in ("_", "__", "___") if name in names})
        for name in ("_", "__", "___"):
            setattr(shell.displayhook, name, "")
        shell.InteractiveTB.tb = None
        if last := shell.last_execution_result:
            last.result = last.error_in_exec = last.error_before_exec = None
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        torch.cuda.empty_cache()
    _glibc("malloc_trim", 0)


def lean() -> None:
    """Have the C library return every freed block of a MiB or more to the system at once, from here on.

    By default it raises that limit to 32 MiB by itself, and keeps what is smaller for later: a notebook that loads one
    model after another then stays as large as the sum of their leftovers. Costs a little time for each large block.
    Only glibc has the setting (`mallopt`); elsewhere the system decides and nothing happens.
    """
    _glibc("mallopt", -3, 2**20)            # M_MMAP_THRESHOLD


def _glibc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function:
        function(*arguments)


def _shell() -> Any:
    interactive = sys.modules.get("IPython")
    return interactive.get_ipython() if interactive else None


def _tracebacks(shell: Any) -> Iterator[TracebackType]:
    last = getattr(getattr(sys, "last_exc", None), "__traceback__", None) or getattr(sys, "last_traceback", None)
    for trace in (last, getattr(getattr(shell, "InteractiveTB", None), "tb", None)):
        if trace is not None:
            yield trace


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _through(value: Any, target: Any) -> str:
    """Say how a name holds the target where that is not plain to see."""
    if value is target:
        return ""
    if callable(getattr(value, "parameters", None)):
        return " (its weights)"
    if getattr(value, "grad_fn", None) is not None:
        return " (through its graph)"
    if isinstance(value, BaseException):
        return " (through its traceback)"
    return f" (a {type(value).__name__})"


def _holds(value: Any, target: Any, depth: int = DEPTH) -> bool:
    if value is target or _storage(value) is target:
        return True
    if depth == 0 or value is None or isinstance(value, str | bytes | int | float | type):
        return False
    return any(_holds(part, target, depth - 1) for part in _parts(value))


def _storage(value: Any) -> Any:
    torch = sys.modules.get("torch")
    return value.untyped_storage() if torch and isinstance(value, torch.Tensor) else value


def _parts(value: Any) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.nn.Module):
        yield from value.modules()
        yield from value.parameters()
        yield from value.buffers()
    elif torch and isinstance(value, torch.Tensor):
        yield from _graph(value)
    elif isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from list(value)
    elif isinstance(value, BaseException):
        for frame in _frames(value.__traceback__):
            if frame.f_code.co_name != "<module>":
                yield from list(frame.f_locals.values())
    elif getattr(value, "__self__", None) is not None and callable(value):
        yield value.__self__


def _graph(tensor: Any) -> Iterator[Any]:
    """Yield the leaves (weights) that a tensor was computed from."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        step = todo.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        if hasattr(step, "variable"):
            yield step.variable
        todo += [before for before, _ in step.next_functions]


def cap(size: str) -> dict[int | str, str]:
    """Return a `max_memory` for from_pretrained that caps the fastest device at `size` (such as "200MB").

    With a CUDA device that is the device, and what does not fit goes to main memory; without one it is main memory, and
    what does not fit stays on disk. Needs torch.
    """
    from labutils import environment

    if environment.device() != "cuda":
        return {"cpu": size}
    return {0: size, "cpu": f"{environment.memory()[1] // 10**6}MB"}
