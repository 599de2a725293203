"""Matrix products with weights that oneDNN has rearranged once, for fp32 on a CPU.

torch multiplies fp32 matrices with MKL, which rearranges the weights again at every call: with 16 to 80 rows that costs as
much as the product. Here every `nn.Linear` gets its rearranged copy for the length of one run, and loses it afterwards.
Used only where a product of this model's own size is measured to be faster.
"""

import time
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

FEW = 4  # rows; with fewer the plain product is as fast
GAIN = 1.15  # the copy has to pay for its memory
_faster: dict[tuple, bool] = {}


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _packed(weight: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def _apply(packed, weight, bias, inputs):
    if inputs.numel() // inputs.shape[-1] < FEW:
        return nn.functional.linear(inputs, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")


def linears(model) -> list[nn.Linear]:
    """Return the layers that can be exchanged: plain fp32 nn.Linear on the CPU, without hooks or a forward of their own."""
    return [one for one in model.modules() if type(one) is nn.Linear and one.weight.dtype == torch.float32
            and one.weight.device.type == "cpu" and not one._forward_hooks and not one._forward_pre_hooks
            and "forward" not in one.__dict__]


def is_faster(model, rows: int) -> bool:
    """Is the rearranged product faster here? Measured once a process and shape, on this model's most common layer."""
    found = linears(model)
    if not found or not _available():
        return False
    weight = max(found, key=lambda one: (sum(o.weight.shape == one.weight.shape for o in found), one.weight.numel())).weight
    key = (*weight.shape, rows, torch.get_num_threads())
    if key not in _faster:
        _faster[key] = _measure(weight.detach(), rows)
    return _faster[key]


def _measure(weight: torch.Tensor, rows: int) -> bool:
    inputs = torch.ones(rows, weight.shape[1])
    packed = _packed(weight, rows)
    plain, ours = partial(nn.functional.linear, inputs, weight), partial(_apply, packed, weight, None, inputs)
    if not torch.allclose(plain(), ours(), rtol=1e-4, atol=1e-4):
        return False
    times = {plain: [], ours: []}
    for _ in range(15):
        for product in (plain, ours):
            start = time.perf_counter()
            product()
            times[product].append(time.perf_counter() - start)
    return min(times[plain]) > GAIN * min(times[ours])


@contextmanager
def rearranged(model, rows: int):
    """Exchange the products of `model` while the block runs; give the bytes that the copies take."""
    exchanged, total = [], 0
    try:
        for layer in linears(model):
            packed = _packed(layer.weight.detach(), rows)
            total += layer.weight.nbytes
            layer.forward = partial(_apply, packed, layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
            exchanged.append(layer)
        yield total
    finally:
        for layer in exchanged:
            del layer.forward
