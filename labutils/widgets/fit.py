"""The fit planner: weights, cache and logits of a public model, as stored and quantized, against a card's memory."""

from collections.abc import Mapping
from typing import Any

from labutils import arithmetic, views
from labutils.widgets.explorer import Explorer

SCHEMES = {"none": "as stored", "int8": "int8", "nf4": "NF4"}
CARDS = ("8 GB", "12 GB", "16 GB", "24 GB", "48 GB", "80 GB")
PARTS = (("weights", views.BLUE, ""), ("cache", views.ORANGE, "//"), ("logits", views.GREEN, ".."))


def fit_bars(name: str, config: Mapping[str, Any], card: str, batch: int, context: int) -> views.Picture:
    """Return stacked bars of weights, cache and logits in GB, one for each number format, with the card as a line.

    Each bar says whether it fits, with the largest batch at this context and the longest context at this batch.
    """
    plans = {label: arithmetic.plan(config, card, quantization=scheme, batch=batch, context=context)
             for scheme, label in SCHEMES.items()}
    memory = next(iter(plans.values())).memory / 1e9
    figure, axes = views._figure(7.0, 3.4)
    words = []
    for row, (label, plan) in enumerate(plans.items()):
        sizes = [amount / 1e9 for amount in (plan.weights.total, plan.cache.peak, plan.logits)]
        left = 0.0
        for size, (part, colour, hatch) in zip(sizes, PARTS, strict=True):
            axes.barh(row, round(size, 3), left=round(left, 3), color=colour, hatch=hatch, edgecolor="white", height=0.55,
                      label=part if row == 0 else None)
            left += size
        verdict = (f"fits: batch up to {plan.largest_batch:,}, context up to {plan.longest_context:,}" if plan.fits
                   else "does not fit" if not plan.largest_batch and not plan.longest_context
                   else f"does not fit: at most batch {plan.largest_batch:,}, or context {plan.longest_context:,}")
        axes.text(0, row - 0.35, f"{'✓' if plan.fits else '✗'} {verdict}", fontsize=9, va="bottom", zorder=5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        parts = " + ".join(f"{part} {size:.2f}" for size, (part, *_) in zip(sizes, PARTS, strict=True))
        words.append(f"{label}: {parts} = {left:.2f}, {verdict}")
    axes.axvline(memory, color="black", linewidth=1.5, linestyle="--", label=f"the card, {card}")
    axes.set_yticks(range(len(plans)), list(plans))
    axes.set_ylim(len(plans) - 0.5, -0.75)
    axes.margins(x=0.05)
    axes.set_xlabel("GB (10⁹ bytes)")
    title = f"{name}: batch {batch:,}, {context:,} tokens, on a card of {card}"
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(fontsize=8, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axes.spines[["top", "right"]].set_visible(False)
    limit = next(iter(plans.values())).positions
    beyond = f". The model was made for {limit:,} tokens at most" if limit and context > limit else ""
    return views._picture(figure, f"{title} (GB): " + "; ".join(words) + beyond)


def fit_planner(model: str = "Llama-3.1-8B", card: str = "24 GB", batch: int = 1, context: int = 8192,
                **own: Mapping[str, Any]) -> Explorer:
    """Explore whether a model fits: choose model, card, batch and context. `own`: further models, name -> config."""
    import ipywidgets

    configs = {name: arithmetic.known(name) for name in arithmetic.known_names()} | own
    wide = {"layout": ipywidgets.Layout(width="60%"), "style": {"description_width": "6em"}, "continuous_update": False}
    controls = {
        "model": ipywidgets.Dropdown(options=list(configs), value=model, description="model"),
        "card": ipywidgets.Dropdown(options=CARDS, value=card, description="card"),
        "batch": ipywidgets.SelectionSlider(options=[2**power for power in range(10)], value=batch, description="batch",
                                            **wide),
        "context": ipywidgets.SelectionSlider(options=[2**power for power in range(7, 18)], value=context,
                                              description="context", **wide),
    }

    def draw(model: str, card: str, batch: int, context: int) -> views.Picture:
        return fit_bars(model, configs[model], card, batch, context)

    return Explorer(draw, controls, "Will it fit? Exact for weights, cache and logits; nothing else is counted")
