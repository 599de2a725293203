"""The sampling explorer: the real model's next token under temperature, top-k, top-p and min-p."""

from collections.abc import Sequence

from labutils import views
from labutils.widgets.explorer import Explorer, text_box


def shaped(logits, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0):
    """Return logits [batch, vocabulary] divided by the temperature and cut, in the order of transformers' `generate`.

    0 (or 1 for top_p) switches a cut off; what is cut is -inf.
    """
    from transformers.generation import logits_process as library

    steps = [
        (temperature != 1, library.TemperatureLogitsWarper, temperature),
        (top_k > 0, library.TopKLogitsWarper, top_k),
        (top_p < 1, library.TopPLogitsWarper, top_p),
        (min_p > 0, library.MinPLogitsWarper, min_p),
    ]
    for wanted, step, value in steps:
        if wanted:
            logits = step(value)(None, logits)
    return logits


def kept_and_cut(words: Sequence[str], before: Sequence[float], after: Sequence[float], kept: int, size: int) -> views.Picture:
    """Return bars of the next token's probability: outlined before the cut, filled after it; cut tokens hatched and ✗."""
    figure, axes = views._figure(6.4, 1.1 + 0.34 * len(words))
    rows = range(len(words))
    alive = [share > 0 for share in after]
    names = [("" if stays else "✗ ") + word.replace("$", r"\$") for word, stays in zip(words, alive, strict=True)]
    axes.barh(rows, after, color=views.BLUE, label="probability of being drawn")
    axes.barh(rows, before, facecolor="none", edgecolor="black", linewidth=1, label="before the cut (temperature only)")
    lost = [row for row, stays in zip(rows, alive, strict=True) if not stays]
    if lost:
        axes.barh(lost, [before[row] for row in lost], color="#dddddd", edgecolor="black", hatch="///", label="cut")
    for row, (old, new) in enumerate(zip(before, after, strict=True)):
        axes.text(max(old, new), row, f" {new:.3f}", va="center", fontsize=9)
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_xlabel("probability of the next token")
    axes.set_title(f"{kept:,} of {size:,} tokens can be drawn", fontsize=11, loc="left")
    axes.legend(fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    shown = ", ".join(f"{word} {new:.3f}" + ("" if stays else " (cut)")
                      for word, new, stays in zip(words, after, alive, strict=True))
    return views._picture(figure, f"{kept:,} of {size:,} tokens can be drawn. Probability of the next token: {shown}")


def sampling(tokenizer, model, text: str, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
             min_p: float = 0.0, top: int = 12) -> Explorer:
    """Explore how a token is drawn: type a text, set temperature and cuts, see the `top` tokens, kept and cut."""
    import ipywidgets
    import torch

    def slider(kind, value, low, high, step, name):
        return kind(value=value, min=low, max=high, step=step, description=name, continuous_update=False)

    controls = {
        "text": text_box(text, "text"),
        "temperature": slider(ipywidgets.FloatSlider, temperature, 0.1, 3.0, 0.1, "temperature"),
        "top_k": slider(ipywidgets.IntSlider, top_k, 0, 50, 1, "top_k"),
        "top_p": slider(ipywidgets.FloatSlider, top_p, 0.05, 1.0, 0.05, "top_p"),
        "min_p": slider(ipywidgets.FloatSlider, min_p, 0.0, 1.0, 0.05, "min_p"),
    }
    known: dict[str, torch.Tensor] = {}     # the last text: a slider needs no new pass

    def logits_of(text: str):
        if text not in known:
            with torch.inference_mode():
                logits = model(**tokenizer(text, return_tensors="pt").to(model.device)).logits[:, -1].float().cpu()
            known.clear()
            known[text] = logits
        return known[text]

    def draw(text: str, temperature: float, top_k: int, top_p: float, min_p: float) -> views.Picture:
        if not text:
            raise ValueError("Type at least one character: the model needs something to continue.")
        logits = logits_of(text)
        before = shaped(logits, temperature).softmax(-1)[0]
        cut = shaped(logits, temperature, top_k, top_p, min_p)[0]
        shares, ids = before.topk(top)
        words = [views.visible(tokenizer.decode([number])) for number in ids.tolist()]
        return kept_and_cut(words, shares.tolist(), cut.softmax(-1)[ids].tolist(), int(cut.isfinite().sum()), len(cut))

    return Explorer(draw, controls, "What can be drawn? 0 switches top_k and min_p off, 1 switches top_p off")
