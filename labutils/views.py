"""Pictures from live tensors. Every picture has a rich form for the notebook and a plain one for everything else.

A `Table` is an HTML table that stays readable where styles are stripped; a `Picture` is a PNG with a description that
serves as its plain form and its alt text. Colour never carries meaning alone.
"""

import base64
import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?( ?%)?")

# Okabe and Ito's colour-blind-safe palette.
BLUE, ORANGE, GREEN, GREY, SKY = "#0072B2", "#D55E00", "#009E73", "#999999", "#56B4E9"


# --- tables ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A table cell with a shade behind it (a CSS colour) and, for the plain form, its own text."""

    text: str
    shade: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under headers. `repr` is a plain-text table, `_repr_html_` an HTML one."""

    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    numeric: frozenset[int] = field(default_factory=frozenset)  # columns set to the right

    def __repr__(self) -> str:
        lines = [self.headers, *(tuple(cell.text for cell in row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headers))]
        set_out = [
            "  ".join(text.rjust(width) if column in self.numeric else text.ljust(width)
                      for column, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines
        ]
        if not any(self.headers):
            set_out = set_out[1:]
        return "\n".join(([self.caption] if self.caption else []) + set_out)

    def _repr_html_(self) -> str:
        def cell(tag: str, content: Cell, column: int) -> str:
            side = "right" if column in self.numeric else "left"
            shade = f";background:{content.shade};color:#111" if content.shade else ""
            text = html.escape(content.text).replace("\n", "<br>")
            text = f"<b>{text}</b>" if content.bold else text
            return f'<{tag} style="text-align:{side};padding:.2em .6em{shade}">{text}</{tag}>'

        head = "".join(cell("th", Cell(text), column) for column, text in enumerate(self.headers))
        body = "".join(
            "<tr>" + "".join(cell("td", content, column) for column, content in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        head = f"<thead><tr>{head}</tr></thead>" if any(self.headers) else ""
        return f'<table style="border-collapse:collapse">{caption}{head}<tbody>{body}</tbody></table>'


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> Table:
    """Return a table. Numbers are set to the right; a value may be a `Cell`; any other is shown by `str`,
    whole numbers with their thousands apart.

    Raises ValueError where a row has not as many values as there are headers.
    """
    for number, row in enumerate(rows):
        if len(row) != len(headers):
            raise ValueError(f"Row {number} has {len(row)} values for {len(headers)} headers: {tuple(row)!r}.")
    numeric = frozenset(
        column for column in range(len(headers))
        if rows and all(NUMBER.fullmatch(_plain(row[column])) for row in rows)
    )
    cells = tuple(tuple(value if isinstance(value, Cell) else Cell(_plain(value)) for value in row) for row in rows)
    return Table(tuple(headers), cells, caption, numeric)


def _plain(value: Any) -> str:
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def files(folder: Path, parts: Sequence[str] = (".",)) -> Table:
    """Return a table of the files below `parts` of a folder: name, bytes and, for a Hub cache, what each points to.

    The course's own manifest.json is left out, and hashes are cut to seven digits. A link points to a file, a file under
    "refs" to the commit that it names.
    """
    def short(name: str) -> str:
        return re.sub("[0-9a-f]{40,}", lambda found: found[0][:7], name.replace("\\", "/"))

    found = sorted(path for part in parts for path in (folder / part).rglob("*")
                   if path.is_file() and path.name != "manifest.json")
    rows = [[short(path.relative_to(folder).as_posix()), path.stat().st_size] for path in found]
    if "refs" not in parts:
        return table(("file", "bytes"), rows)
    for path, row in zip(found, rows, strict=True):
        if path.parent.name == "refs":
            row.append(short(path.read_text(encoding="utf-8")))
        else:
            row.append(short(os.readlink(path)) if path.is_symlink() else "")
    return table(("file", "bytes", "points to"), rows)


def visible(token: str) -> str:
    """Return a token's text with its white space and byte-level marks made visible: · for a space, ⏎ for a line end."""
    return token.replace("Ġ", "·").replace("▁", "·").replace("Ċ", "⏎").replace(" ", "·").replace("\n", "⏎")


def tokens(tokenizer, encoding: Mapping[str, Any], row: int = 0) -> Table:
    """Return one row of an encoded batch as a strip: position, token, and each input the model will get.

    `encoding` holds input_ids and what else the tokenizer made, [batch, length] tensors or lists. Padding, where the
    attention mask is 0, is shaded and marked "pad".
    """
    inputs = {name: [int(value) for value in values[row]] for name, values in encoding.items()}
    mask = inputs.get("attention_mask", [1] * len(inputs["input_ids"]))
    rows = []
    for position, token in enumerate(tokenizer.convert_ids_to_tokens(inputs["input_ids"])):
        shade = "" if mask[position] else "#dddddd"
        name = visible(token) + ("" if mask[position] else " (pad)")
        rows.append([Cell(str(position), shade), Cell(name, shade, bold=True),
                     *(Cell(str(values[position]), shade) for values in inputs.values())])
    return table(("position", "token", *inputs), rows)


def batch(tokenizer, encoding: Mapping[str, Any]) -> Table:
    """Return a whole encoded batch as a rectangle of tokens, one row each; padding (mask 0) is shaded and shown as ░."""
    rows = []
    for ids, mask in zip(encoding["input_ids"], encoding["attention_mask"], strict=True):
        names = tokenizer.convert_ids_to_tokens([int(number) for number in ids])
        rows.append([Cell(visible(name)) if int(real) else Cell("░", "#dddddd")
                     for name, real in zip(names, mask, strict=True)])
    width = len(rows[0])
    return table([str(position) for position in range(width)], rows)


def side_by_side(questions: Sequence[str], **answers: Sequence[str]) -> Table:
    """Return a table of each question with its answers; an answer that differs from the first column's is marked ≠."""
    first, *others = answers
    rows = []
    for number, question in enumerate(questions):
        right = answers[first][number]
        row = [_cut(question), repr(_cut(right))]
        for other in others:
            given = answers[other][number]
            row.append(Cell(f"= {_cut(given)!r}" if given == right else f"≠ {_cut(given)!r}",
                            "" if given == right else "#fde2d2"))
        rows.append(row)
    return table(("question", *(name.replace("_", " ") for name in answers)), rows)


def _cut(text: str, limit: int = 48) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- pictures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """A PNG and the words that say the same: `repr` and alt text."""

    png: bytes
    description: str

    def __repr__(self) -> str:
        return self.description

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data = {"image/png": base64.b64encode(self.png).decode("ascii"), "text/plain": self.description}
        return data, {"image/png": {"alt": self.description}}

    def html(self) -> str:
        """Return the picture as an <img> element, for a widget."""
        code = base64.b64encode(self.png).decode("ascii")
        return f'<img src="data:image/png;base64,{code}" alt="{html.escape(self.description, quote=True)}">'


def _figure(width: float, height: float):
    # Not pyplot: nothing global, no figure left open, no window system.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    return figure, figure.subplots()


def _picture(figure, description: str) -> Picture:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return Picture(buffer.getvalue(), description)


def bars(labels: Sequence[str], values: Sequence[float], title: str, unit: str, digits: int = 2) -> Picture:
    """Return horizontal bars, first label on top, each with its value (rounded to `digits`); `unit` names the axis."""
    values = [float(value) for value in values]
    figure, axes = _figure(6.4, 0.7 + 0.36 * len(values))
    shown = [f"{value:.{digits}f}" for value in values]
    drawn = axes.barh(range(len(values)), values, color=[BLUE if value >= 0 else ORANGE for value in values])
    axes.bar_label(drawn, shown, padding=3, fontsize=9)
    axes.set_yticks(range(len(values)), [label.replace("$", r"\$") for label in labels])
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    pairs = ", ".join(f"{label} {value}" for label, value in zip(labels, shown, strict=True))
    return _picture(figure, f"{title.rstrip('?.')} ({unit}): {pairs}")


def mask_grid(weights, names: Sequence[str], mask: Sequence[int], title: str) -> Picture:
    """Return an attention map: who (row) looks at whom (column).

    `weights`: [length, length], rows that sum to 1 (or 0/1 for a bare mask). `mask`: 1 for a real token, 0 for padding;
    columns of padding are hatched and their labels struck with ░.
    """
    import numpy

    weights = numpy.asarray(weights, dtype=float)
    length = len(names)
    if weights.shape != (length, length):
        raise ValueError(f"Attention of {length} tokens is [{length}, {length}]; this is {list(weights.shape)}.")
    size = max(3.2, 0.34 * length + 1.6)
    figure, axes = _figure(size + 0.8, size)
    image = axes.imshow(weights, cmap="cividis", vmin=0)
    labels = [visible(name).replace("$", r"\$") if real else "░" for name, real in zip(names, mask, strict=True)]
    axes.set_xticks(range(length), labels, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(length), labels, fontsize=8)
    axes.set_xlabel("looked at (key)")
    axes.set_ylabel("looking (query)")
    for column, real in enumerate(mask):
        if not real:
            axes.axvspan(column - 0.5, column + 0.5, facecolor="none", edgecolor="white", hatch="///", linewidth=0)
    figure.colorbar(image, ax=axes, shrink=0.8, label="attention weight")
    on_padding = float(weights[:, [not real for real in mask]].sum() / length)
    axes.set_title(f"{title}:\n{on_padding:.0%} falls on padding", fontsize=11, loc="left")
    return _picture(figure, f"{title}. {length} tokens, {sum(not real for real in mask)} of them padding; share of "
                            f"attention that falls on padding: {on_padding:.2f}")
