"""The quantization explorer: bits and group size -> what becomes of a layer's weights, the error, the size, a text."""

import contextlib
from collections.abc import Iterator

from labutils import views
from labutils.widgets.explorer import Explorer

GROUPS = ("32", "64", "192", "row", "tensor")
SCALE_BITS = 16


def absmax(weight, bits: int, group: str):
    """Return (codes int8, scales) of weight [rows, columns]; `group` is a width, "row" or "tensor".

    The codes are shaped [parts, group] and the scales [parts, 1], so that codes * scales restores the numbers. A row
    that the width does not divide is one group.
    """
    import torch

    rows, columns = weight.shape
    width = {"row": columns, "tensor": rows * columns}.get(group) or int(group)
    if (rows * columns if group == "tensor" else columns) % width:
        width = columns
    parts = weight.reshape(-1, width)
    top = 2 ** (bits - 1) - 1
    scales = (parts.abs().amax(1, keepdim=True) / top).clamp(min=1e-12)
    return (parts / scales).round_().to(torch.int8), scales


def size(weights: int, scales: int, rest: int, bits: int) -> int:
    """Return the bytes of a model: packed weights, 16-bit scales, and the numbers that stay in 16 bit."""
    return (weights * bits + (scales + rest) * SCALE_BITS) // 8


@contextlib.contextmanager
def squeezed(layers, bits: int, group: str) -> Iterator[int]:
    """Let `layers` (linear) compute with quantized weights inside the block; give the number of scales.

    Only codes and scales are held; a layer's weight is restored while that layer computes, and put back after it.
    """
    held, handles = {}, []

    def put(layer, inputs):
        codes, scales = held[layer][:2]
        layer.weight.data = (codes * scales).reshape(held[layer][2].shape).to(held[layer][2].dtype)

    def back(layer, inputs, output):
        layer.weight.data = held[layer][2]

    count = 0
    for layer in layers:
        held[layer] = (*absmax(layer.weight.data, bits, group), layer.weight.data)
        count += held[layer][1].numel()
        handles += [layer.register_forward_pre_hook(put), layer.register_forward_hook(back)]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()
        for layer, (_, _, weight) in held.items():
            layer.weight.data = weight


def before_and_after(before, after, title: str, notes: str) -> views.Picture:
    """Return two histograms over one axis: a layer's weights as they were and what they became."""
    import numpy

    figure, axes = views._figure(6.4, 3.6)
    limit = float(f"{float(before.abs().quantile(0.999)):.1g}") or 1.0
    edges = numpy.linspace(-limit, limit, 62)
    for values, colour, style, label in ((before, views.ORANGE, "stepfilled", "before"), (after, views.BLUE, "step", "after")):
        counts = numpy.histogram(values.numpy(), edges)[0] / values.numel()
        axes.hist(edges[:-1], edges, weights=counts.round(3), histtype=style, color=colour, label=label,
                  alpha=0.5 if style == "stepfilled" else 1, linewidth=1.3)
    axes.set_xlabel("weight")
    axes.set_ylabel("share of the weights")
    axes.set_title(f"{title}\n{notes}".replace("$", r"\$"), fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return views._picture(figure, f"{title}. {notes}")


def quantization(tokenizer, model, text: str, bits: int = 4, group: str = "64", new: int = 6) -> Explorer:
    """Explore absmax quantization of a causal model: bits and group -> a layer's histogram, error, size, `new` tokens.

    All linear layers but the head are quantized; embeddings, norms and head stay in 16 bit (counted so in the size).
    """
    import ipywidgets
    import torch

    head = model.get_output_embeddings()
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) and layer is not head]
    weights = sum(layer.weight.numel() for layer in layers)
    rest = sum(each.numel() for each in model.parameters()) - weights
    shown = layers[len(layers) // 2].weight.data.float().cpu()
    controls = {
        "bits": ipywidgets.IntSlider(value=bits, min=2, max=8, description="bits", continuous_update=False),
        "group": ipywidgets.Dropdown(value=group, options=GROUPS, description="one scale per"),
    }
    inputs = tokenizer(text, return_tensors="pt").to(model.device)

    def draw(bits: int, group: str) -> views.Picture:
        codes, scales = absmax(shown, bits, group)
        after = (codes * scales).reshape(shown.shape)
        error = ((after - shown).norm() / shown.norm()).item()
        with torch.inference_mode(), squeezed(layers, bits, group) as count:
            output = model.generate(**inputs, max_new_tokens=new, do_sample=False)
        words = views.visible(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]))
        title = f"{bits} bits, one scale per {group}: {bits + SCALE_BITS * count / weights:.2f} bits per weight"
        notes = (f"error of this layer {error:.1%}, model {size(weights, count, rest, bits) / 1e6:.1f} MB\n"
                 f"{text} → {words}")
        return before_and_after(shown.flatten(), after.flatten(), title, notes)

    return Explorer(draw, controls, "Squeeze the chat model: how few bits will do?")
