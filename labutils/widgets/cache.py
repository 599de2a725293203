"""The cache timeline: the bytes of a request's cache, from its prompt to its last token, against this machine's memory."""

from collections.abc import Sequence

from labutils import arithmetic, environment, views
from labutils.widgets.explorer import Explorer

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
POINTS = 48


def size(amount: float) -> str:
    """Return bytes as a person reads them, in powers of 2: 536870912 -> "512.0 MiB"."""
    for unit, name in UNITS:
        if amount >= unit:
            return f"{amount / unit:.1f} {name}"
    return f"{amount:.0f} B"


def timeline(config: dict, batch: int, prompt: int, new: int, dtype: str, kv_heads: int | None = None) -> list[tuple[int, int]]:
    """Return (tokens in the cache, bytes held) from the end of the prompt on, at about fifty moments.

    The first point is the moment after the prompt: sliding layers still hold all of it. `kv_heads` replaces the config's.
    """
    if kv_heads:
        config = {**config, "num_key_value_heads": kv_heads}
    rules = arithmetic.cache.Rules(config)
    points = [(prompt, rules.cache(batch, prompt, 0, dtype).held_after_prefill)]
    steps = sorted({2, *(max(2, round(new * part / POINTS)) for part in range(1, POINTS + 1)), new})
    return points + [(prompt + step - 1, rules.cache(batch, prompt, step, dtype).held) for step in steps if 2 <= step <= new]


def against(points: Sequence[tuple[int, int]], memory: int, naive: int | None, title: str) -> views.Picture:
    """Return the timeline as a picture: bytes over tokens, with the memory as a line and the quoted formula as a mark."""
    unit, name = next((each for each in UNITS if max(amount for _, amount in points) >= each[0]), (1, "B"))
    tokens, amounts = zip(*[(at, round(amount / unit, 3)) for at, amount in points], strict=True)
    figure, axes = views._figure(6.6, 3.6)
    axes.fill_between((0, *tokens), (0, *amounts), color=views.SKY, alpha=0.4)
    axes.plot((0, tokens[0]), (0, amounts[0]), color=views.GREY, linestyle="--", linewidth=1.2)
    axes.plot(tokens, amounts, color=views.BLUE, linewidth=2, label="cache")
    axes.plot(tokens[0], amounts[0], color=views.BLUE, marker="o", label=f"after the prompt: {size(points[0][1])}")
    if naive is not None and naive != points[-1][1]:
        axes.plot(tokens[-1], naive / unit, color=views.ORANGE, marker="D", linestyle="none", label=f"the formula: {size(naive)}")
    highest = max(*amounts, (naive or 0) / unit)
    if memory / unit < 3 * highest:
        axes.axhline(memory / unit, color="black", linewidth=1.2, linestyle=":", label=f"memory: {size(memory)}")
    peak = max(amount for _, amount in points)
    verdict = "fits" if peak <= memory else "does not fit"
    axes.set_xlabel("tokens read and written, each sequence")
    axes.set_ylabel(f"cache of the batch, {name}")
    axes.set_ylim(0)
    axes.set_xlim(0)
    axes.legend(fontsize=8, loc="upper left", framealpha=1, edgecolor="white")
    said = f"{title}: {size(peak)} at the peak, {peak / memory:.0%} of {size(memory)} ({verdict}, weights not counted)"
    axes.set_title(said.replace(": ", "\n", 1), fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return views._picture(figure, f"{said}. After the prompt ({points[0][0]:,} tokens) {size(points[0][1])}, at the end "
                                  f"({points[-1][0]:,} tokens) {size(points[-1][1])}")


def cache_timeline(config, prompt: int = 2048, new: int = 512, batch: int = 1, dtype: str = "bfloat16",
                   memory: int | None = None) -> Explorer:
    """Explore what a cache takes: batch, prompt, new tokens, KV heads and dtype, against `memory` bytes (default: this
    machine's GPU, else its main memory). `config` is what `labutils.arithmetic` reads."""
    import ipywidgets

    fields = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    memory = memory or environment.device_memory() or environment.memory()[0]
    heads = fields.get("num_attention_heads")
    own = fields.get("num_key_value_heads") or heads
    choices = [("the config's", 0), *((str(number), number) for number in (1, 2, 4, 8, 16, 32, 64)
                                      if isinstance(heads, int) and heads % number == 0)]

    def slider(value, low, high, name):
        return ipywidgets.IntSlider(value=value, min=low, max=high, step=low, description=name, continuous_update=False)

    controls = {
        "batch": slider(batch, 1, 64, "batch"),
        "prompt": slider(prompt, 256, 131_072, "prompt"),
        "new": slider(new, 256, 32_768, "new tokens"),
        "kv_heads": ipywidgets.Dropdown(options=choices, value=0, description="KV heads"),
        "dtype": ipywidgets.Dropdown(options=["float32", "bfloat16", "float8_e4m3fn"], value=dtype, description="dtype"),
    }

    def draw(batch: int, prompt: int, new: int, kv_heads: int, dtype: str) -> views.Picture:
        points = timeline(fields, batch, prompt, new, dtype, kv_heads or None)
        shown = {**fields, "num_key_value_heads": kv_heads} if kv_heads else fields
        try:
            naive = arithmetic.naive_kv_bytes(shown, batch, points[-1][0], dtype)
        except arithmetic.ConfigError:      # a model without heads: there is no such formula
            naive = None
        title = f"batch {batch}, {kv_heads or own} KV heads, {dtype}"
        return against(points, memory, naive, title)

    return Explorer(draw, controls, f"What the cache of a {fields.get('model_type', 'model')} takes")
