"""The throughput and latency explorer: a measured curve, a batch on it, and the best batch that a budget allows."""

from collections.abc import Mapping

from labutils import views
from labutils.throughput import Curve, Point
from labutils.widgets.explorer import Explorer


def within(curve: Curve, new: int, budget: float) -> Point | None:
    """Return the point of most throughput whose answer of `new` tokens is there within `budget` seconds, or None."""
    fits = [point for point in curve.points if point.latency(new) <= budget]
    return max(fits, key=lambda point: point.throughput(new), default=None)


def tradeoff(curve: Curve, batch: int, new: int, budget: float) -> views.Picture:
    """Return two panels: the steps under their limits, and what each batch costs in latency, with the budget as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.0), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    views.roofline(curve, left, batch)
    seconds = [float(f"{point.latency(new):.3g}") for point in curve.points]
    tokens = [float(f"{point.throughput(new):.3g}") for point in curve.points]
    right.plot(seconds, tokens, color=views.BLUE, marker="o", linewidth=1)
    for point, x, y in zip(curve.points, seconds, tokens, strict=True):
        right.annotate(str(point.batch), (x, y), xytext=(6, -11), textcoords="offset points", fontsize=9)
    at = [point.batch for point in curve.points].index(batch)
    right.plot([seconds[at]], [tokens[at]], marker="o", markersize=13, color="black", fillstyle="none", linestyle="none")
    right.axvline(budget, color=views.ORANGE, linestyle="--")
    right.text(budget, 0.02, " budget", color=views.ORANGE, fontsize=9, transform=right.get_xaxis_transform())
    best = within(curve, new, budget)
    title = "No batch answers within the budget" if best is None else f"Best within {budget:g} s: batch {best.batch}"
    right.set_title(title, fontsize=11, loc="left")
    right.set_xlabel(f"seconds until an answer of {new} tokens is there")
    right.set_ylabel("new tokens per second, prompts included")
    right.set_xlim(left=0)
    right.set_ylim(bottom=0)
    right.spines[["top", "right"]].set_visible(False)
    chosen = curve.point(batch)
    return views._picture(figure, (
        f"{curve.name}. Batch {batch}: {chosen.throughput(new):.1f} new tokens per second, an answer of {new} tokens after "
        f"{chosen.latency(new):.2f} s. {title}" + ("" if best is None else f", {best.throughput(new):.1f} tokens per second")))


def throughput(curves: Mapping[str, Curve], batch: int = 8, new: int = 32, budget: float = 4.0) -> Explorer:
    """Explore measured curves (name -> curve, the first is shown first): batch, length of the answers, seconds allowed."""
    import ipywidgets

    first = next(iter(curves.values()))
    controls = {
        "curve": ipywidgets.Dropdown(options=list(curves), description="measured"),
        "batch": ipywidgets.SelectionSlider(options=[point.batch for point in first.points], value=batch, description="batch",
                                            continuous_update=False),
        "new": ipywidgets.IntSlider(value=new, min=8, max=256, step=8, description="new tokens", continuous_update=False),
        "budget": ipywidgets.FloatSlider(value=budget, min=0.5, max=30, step=0.5, description="budget (s)",
                                         continuous_update=False),
    }

    def draw(curve: str, batch: int, new: int, budget: float) -> views.Picture:
        known = curves[curve]
        sizes = [point.batch for point in known.points]
        return tradeoff(known, batch if batch in sizes else max(sizes), new, budget)

    return Explorer(draw, controls, "How many at once? The ring is your batch; numbers at the points are batch sizes")
