"""Peak memory by a run that uses none: the model on the meta device, with every live storage counted.

`labutils.arithmetic` gives what a config tells to the byte. What no config tells - activations, score matrices, the
copy while a cache grows - depends on the code that runs. `trace` runs that code on tensors without memory and keeps the
sum of all storages that are alive; the peak of this sum is what the same run needs on a real device, apart from what
kernels take inside themselves and what the allocator rounds and reserves. Needs torch and transformers.
"""

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labutils.errors import LabError


class TraceError(LabError):
    """The model cannot be built or run without real values."""


@dataclass(frozen=True)
class Peak:
    """Bytes of one traced run on `device` under one attention implementation.

    `weights` is parameters and buffers; `prefill` and `decode` the most that was alive beyond them while the prompt was
    read and while one more token was; `held` what stayed alive between the two (the cache); `logits` the logits' part.
    """

    weights: int
    prefill: int
    decode: int
    held: int
    logits: int
    attention: str
    device: str

    @property
    def total(self) -> int:
        """The most bytes alive at any time, weights included."""
        return self.weights + max(self.prefill, self.decode)


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of all storages that operations create, from their birth to their death."""

    def __init__(self):
        super().__init__()
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        if function is torch.ops.aten._safe_softmax.default and result.numel():
            # Inside, it looks for rows without a number: a flag for each score, one for each row, and a zero.
            inside = result.numel() + result.numel() // result.shape[-1] + result.element_size()
            self.peak = max(self.peak, self.alive + inside)
        return result

    def know(self, tensors) -> int:
        """Leave storages out that were there before (weights); return their bytes."""
        total = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known.add(storage._cdata)
                total += storage.nbytes()
        return total

    def start(self) -> None:
        """Begin a new peak at what is alive now."""
        self.peak = self.alive

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, size).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gqa: bool = False, on: str = "cpu") -> bool:
    """Say whether torch has a fused kernel for these shapes on "cpu" or "cuda", or builds the score matrix instead.

    No kernel broadcasts heads: falcon's one key head for all queries goes through the score matrix everywhere, unless
    `enable_gqa` is given. The kernel of the CPU wants values as wide as keys (latent attention's are narrower), CUDA's
    memory-efficient one does not. Source: aten/src/ATen/native/transformers/sdp_utils_cpp.cpp and cuda/sdp_utils.cpp.
    """
    if any(tensor.dim() != 4 or tensor.dtype != query.dtype for tensor in (query, key, value)):
        return False
    if query.dtype not in (torch.float32, torch.bfloat16, torch.float16) and not (on == "cpu" and query.is_floating_point()):
        return False
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    grouped = gqa and key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    return (
        query.shape[0] == key.shape[0] == value.shape[0]
        and (same_heads or grouped)
        and query.shape[-1] == key.shape[-1]
        and (on != "cpu" or query.shape[-1] == value.shape[-1])
    )


@contextmanager
def _attention_kernels(on: str | None):
    """Make scaled_dot_product_attention allocate what the kernels of `on` do: the output and one number per query.

    On the meta device torch always takes the path with the score matrix. That path stays where `fused` finds no kernel;
    None leaves torch as it is.
    """
    whole = torch.nn.functional.scaled_dot_product_attention

    def attend(query, key, value, attn_mask=None, *args, enable_gqa=False, **kwargs):
        if not fused(query, key, value, enable_gqa, on):
            return whole(query, key, value, attn_mask, *args, enable_gqa=enable_gqa, **kwargs)
        if attn_mask is not None and attn_mask.dtype == torch.bool:  # torch makes a mask of numbers of it
            numbers = query.new_empty(attn_mask.shape)  # noqa: F841  (it lives as long as the kernel runs)
        # In memory the heads of a token stand together, so that the transpose after it needs no copy.
        batch, heads, tokens = query.shape[:3]
        output = query.new_empty((batch, tokens, heads, value.shape[-1])).transpose(1, 2)
        query.new_empty(query.shape[:-1], dtype=torch.float32)
        return output

    torch.nn.functional.scaled_dot_product_attention = attend if on else whole
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = whole


def trace(
    config: Any,
    batch: int = 1,
    prompt: int = 128,
    dtype: Any = torch.bfloat16,
    attention: str = "sdpa",
    device: str = "meta",
    logits_to_keep: int | None = 1,
    kernels: str = "cpu",
) -> Peak:
    """Return the peak of live storages while a decoder reads `prompt` tokens and one more, on the meta device.

    `config` is a PreTrainedConfig; `attention` is "sdpa" or "eager". `logits_to_keep=None` computes the logits of every
    token, as a plain `forward` does; `generate` keeps the last one's. Give device="cpu" to run it with real values.
    `kernels` says whose fused attention the meta device stands for, "cpu" or "cuda" (see `fused`).

    Raises TraceError when the model asks for values, which the meta device has not.
    """
    try:
        model = build(config, dtype, attention, device)
        return trace_model(model, batch, prompt, attention, logits_to_keep, kernels)
    except TRACE_ERRORS as error:
        raise _refused(config.model_type, error, f"batch {batch} and {prompt} tokens on {device}") from error


# What models raise that cannot be built from a config or ask for values that the meta device has not.
TRACE_ERRORS = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError, KeyError, IndexError)


def build(config: Any, dtype: Any, attention: str, device: str = "meta") -> torch.nn.Module:
    """Return the decoder of a config on a device, ready to be traced. Raises TraceError when it cannot be built."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    try:
        with torch.device(device), no_init_weights() if device == "meta" else nullcontext():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()
            model.tie_weights()
        return model
    except TRACE_ERRORS as error:
        raise _refused(config.model_type, error, f"attention {attention}") from error


def peak_of(model: torch.nn.Module, batch: int, prompt: int, attention: str) -> Peak:
    """Return `trace_model` of a built model with the last token's logits. Raises TraceError when it asks for values."""
    kernels = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return trace_model(model, batch, prompt, attention, 1, kernels)
    except TRACE_ERRORS as error:
        raise _refused(model.config.model_type, error, f"batch {batch} and {prompt} tokens") from error


def _refused(model_type: str, error: Exception, how: str) -> TraceError:
    return TraceError(f"{model_type} cannot be traced with {how}: {' '.join(str(error).split())[:200]}")


def trace_model(
    model: torch.nn.Module,
    batch: int,
    prompt: int,
    attention: str = "sdpa",
    logits_to_keep: int | None = 1,
    kernels: str = "cpu",
) -> Peak:
    """Return the peak of a model that is already built, on the device it is on.

    An encoder reads the prompt only: its decode is 0, and logits those of its head, if any.
    """
    device = next(model.parameters()).device
    ids = torch.zeros((batch, prompt), dtype=torch.long, device=device)
    generates = model.can_generate()
    known = inspect.signature(model.forward).parameters
    keep = {"logits_to_keep": logits_to_keep} if logits_to_keep is not None and _takes(known, "logits_to_keep") else {}
    use = {"use_cache": True} if generates else {}
    live = LiveStorages()
    weights = live.know([*model.parameters(), *model.buffers(), ids])
    weights -= ids.untyped_storage().nbytes()
    with torch.inference_mode(False), torch.no_grad(), _attention_kernels(kernels if device.type == "meta" else None), live:
        output = model(input_ids=ids, **use, **keep)
        prefill, scores = live.peak, output.get("logits")
        logits = scores.untyped_storage().nbytes() if scores is not None else 0
        name = next((name for name in ("cache", "past_key_values", "cache_params") if name in output), None)
        past = {name: output[name]} if name else {}
        del output, scores
        held = live.alive
        live.start()
        if generates:
            model(input_ids=ids[:, :1], **use, **past, **keep)
    return Peak(weights, prefill, live.peak if generates else 0, held if generates else 0, logits, attention, device.type)


def _takes(known, name: str) -> bool:
    """Say whether a forward takes an argument, by name or among others."""
    return name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield every floating-point tensor inside a cache, wherever its layers keep it; counters are no content."""
    if torch.is_tensor(value):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)
    elif hasattr(value, "__dict__"):
        yield from tensors(vars(value))


def held(cache: Any) -> tuple[int, int]:
    """Return the bytes of a cache's tensors, and of the storages behind them, each storage once.

    A tensor may be a view of something larger, which stays in memory as long as the view does.
    """
    found = list(tensors(cache))
    behind = [each.untyped_storage() for each in found]
    storages = {storage.data_ptr(): storage.nbytes() for storage in behind}
    return sum(each.nbytes for each in found), sum(storages.values())
