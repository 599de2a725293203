"""Pictures from live tensors. Every picture has a rich form for the notebook and a plain one for everything else.

A `Table` is an HTML table that stays readable where styles are stripped; a `Picture` is a PNG with a description that
serves as its plain form and its alt text. Colour never carries meaning alone.
"""

import base64
import html
import io
import math
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
    shown = [f"{float(value):.{digits}f}" for value in values]
    values = [round(float(value), digits + 1) for value in values]  # the same picture where the last bits differ
    figure, axes = _figure(6.4, 0.7 + 0.36 * len(values))
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

    weights = numpy.asarray(weights, dtype=float).round(3)  # the same picture where the last bits differ
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


def attention_map(weights, names: Sequence[str], title: str) -> Picture:
    """Return the attention of one head, or of several averaged: who (row) looks at whom (column).

    weights: [length, length], rows that sum to 1. The plain form names, for each token, the one that it looks at most.
    """
    import numpy

    exact = numpy.asarray(weights, dtype=float)
    length = len(names)
    if exact.shape != (length, length):
        raise ValueError(f"Attention of {length} tokens is [{length}, {length}]; this is {list(exact.shape)}.")
    size = max(3.2, 0.34 * length + 1.0)
    figure, axes = _figure(size + 0.8, size)
    image = axes.imshow(exact.round(2), cmap="cividis", vmin=0, vmax=1)     # the same picture where the last bits differ
    labels = [visible(name).replace("$", r"\$") for name in names]
    axes.set_xticks(range(length), labels, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(length), labels, fontsize=8)
    axes.set_xlabel("looked at (key)")
    axes.set_ylabel("looking (query)")
    figure.colorbar(image, ax=axes, shrink=0.8, label="attention weight")
    axes.set_title(title, fontsize=11, loc="left")
    most = ", ".join(f"{visible(name)} → {visible(names[row.argmax()])} {row.max():.2f}"
                     for name, row in zip(names, exact, strict=True))
    return _picture(figure, f"{title}. Each token and the one that it looks at most: {most}")


def padding(orders: Mapping[str, Sequence[Sequence[int]]], title: str) -> Picture:
    """Return the rectangles that batches of prompts make, one panel an order, padded on the left.

    `orders`: name -> batches -> length in tokens of each prompt. A row is a prompt, blue; what fills its batch up to the
    longest is hatched. The share of padding stands over each panel.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(orders), sharey=True, sharex=True, squeeze=False)[0]
    said = []
    for axes, (name, batches) in zip(panels, orders.items(), strict=True):
        longest = [max(batch) for batch in batches for _ in batch]
        lengths = [length for batch in batches for length in batch]
        rows, computed, useful = range(len(lengths)), sum(longest), sum(lengths)
        gaps = [most - length for most, length in zip(longest, lengths, strict=True)]
        axes.barh(rows, lengths, left=[-length for length in lengths], height=1, color=BLUE)
        axes.barh(rows, gaps, left=[-most for most in longest], height=1, color="#e3e3e3", edgecolor=GREY, hatch="////",
                  linewidth=0)
        for end in range(len(batches[0]), len(lengths), len(batches[0])):
            axes.axhline(end - 0.5, color="white", linewidth=1.2)
        axes.set_title(f"{name}: {1 - useful / computed:.0%} padding", fontsize=10, loc="left")
        axes.set_xlabel("positions before the answer")
        axes.xaxis.set_major_formatter(lambda at, _: f"{abs(at):g}")
        axes.spines[["top", "left", "right"]].set_visible(False)
        said.append(f"{name}: {computed:,} positions for {useful:,} tokens, {1 - useful / computed:.0%} padding")
    panels[0].invert_yaxis()
    panels[0].set_ylabel("prompts, batch by batch")
    panels[0].set_yticks([])
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return _picture(figure, f"{title}. " + "; ".join(said))


def roofline(curve, axes=None, chosen: int | None = None) -> Picture | str:
    """Return the measured decode steps of a `throughput.Curve` under the two limits of its machine, both axes logarithmic.

    With `axes`, draw there instead, with the batch `chosen` ringed, and return the words.
    """
    figure = None
    if axes is None:
        figure, axes = _figure(6.4, 3.9)
    batches = [point.batch for point in curve.points]
    measured = [float(f"{point.batch / point.step:.3g}") for point in curve.points]
    memory = [float(f"{batch / curve.memory_seconds(batch):.3g}") for batch in batches]
    compute = float(f"{1 / curve.compute_seconds(1):.3g}")
    axes.plot(batches, memory, color=ORANGE, linestyle="--", label="limit of the memory: all weights read once a step")
    axes.axhline(compute, color=GREEN, linestyle=":", linewidth=2, label="limit of the arithmetic")
    axes.plot(batches, measured, color=BLUE, marker="o", label="measured")
    if chosen is not None:
        axes.plot([chosen], [measured[batches.index(chosen)]], marker="o", markersize=13, color="black", fillstyle="none",
                  linestyle="none")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    ticks = [at for at in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
             if min(measured) / 2 <= at <= 2 * max(*memory, compute)]
    axes.set_yticks(ticks, [f"{at:,}" for at in ticks])
    axes.minorticks_off()
    axes.set_xlabel("batch (rows)")
    axes.set_ylabel("new tokens per second, decoding")
    axes.set_ylim(top=6 * max(*memory, compute))
    axes.legend(fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    title = f"Up to about {curve.free_rows:.0f} rows, reading the weights is the limit"
    axes.set_title(title, fontsize=11, loc="left")
    pairs = ", ".join(f"batch {batch} {tokens:g}" for batch, tokens in zip(batches, measured, strict=True))
    words = (f"{title}. {curve.name}. New tokens per second of decoding: {pairs}; the arithmetic allows {compute:g}, the "
             f"memory {memory[0]:g} at batch {batches[0]}")
    return words if figure is None else _picture(figure, words)


# --- text cut into tokens ---------------------------------------------------------------------------------------------


TINTS = ("#d6e9f8", "#fdf0c4", "#d3efe4", "#fbe0ec")    # backgrounds in turn; the bars between tokens say the same


@dataclass(frozen=True)
class Piece:
    """One token as it is shown: its text, its own bytes, its id, and the text that it has lost (an unknown token)."""

    text: str
    data: bytes
    number: int
    lost: str = ""


@dataclass(frozen=True)
class Strips:
    """One text cut by several tokenizers: name -> pieces. `repr` sets bars between tokens, `_repr_html_` colours too."""

    text: str
    strips: Mapping[str, tuple[Piece, ...]]

    def _counts(self, pieces: Sequence[Piece]) -> str:
        size = len(self.text.encode())
        lost = sum(len(piece.lost) for piece in pieces)
        words = f"{len(pieces)} tokens for {len(self.text)} characters, {size} bytes"
        return words + (f"; characters lost: {lost}" if lost else "")

    def __repr__(self) -> str:
        lines = []
        for name, pieces in self.strips.items():
            cut = "│".join(piece.text for piece in pieces)
            # Bytes of what is not plain ASCII; the rest says its bytes itself.
            hidden = [f"{piece.text} = {piece.data.hex(' ').upper()}" for piece in pieces if not piece.data.isascii()]
            lines += [f"{name}: {self._counts(pieces)}", f"  │{cut}│", *([f"  bytes: {'; '.join(hidden)}"] if hidden else [])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def box(piece: Piece, tint: str) -> str:
            small = "font-size:.7em;color:#444;font-family:monospace"
            lost = f'<div style="{small}">lost: {html.escape(piece.lost)}</div>' if piece.lost else ""
            edge = "border:2px dashed #b35900" if piece.lost else "border-right:2px solid #333"
            return (
                f'<div style="display:inline-block;vertical-align:top;background:{tint};color:#111;{edge};'
                f'padding:.1em .35em;margin:0 0 .3em 0;text-align:center;line-height:1.3">'
                f"<b>{html.escape(piece.text)}</b>"
                f'<div style="{small}">{piece.data.hex(" ").upper()}</div><div style="{small}">{piece.number}</div>{lost}</div>'
            )

        columns = "".join(
            f'<div style="flex:1 1 18em;min-width:14em;margin-right:1em"><div><b>{html.escape(name)}</b>: '
            f"{html.escape(self._counts(pieces))}</div>"
            + "".join(box(piece, TINTS[at % len(TINTS)]) for at, piece in enumerate(pieces)) + "</div>"
            for name, pieces in self.strips.items()
        )
        legend = "Each box is a token: its text, its bytes, its id. · is a space; 1/3 is the first third of a character."
        return f'<div style="display:flex;flex-wrap:wrap">{columns}</div><div style="color:#666">{legend}</div>'


def strips(text: str, **tokenizers) -> Strips:
    """Return `text` cut by each of the tokenizers, side by side, without special tokens added.

    A character that is spread over several tokens is shown as "🌙 1/3", "🌙 2/3" and so on; bytes that are no character,
    as ⟨F0 9F⟩. An unknown token is marked ✗ and keeps the text that it stands for.
    """
    return Strips(text, {name: tuple(pieces(tokenizer, text)) for name, tokenizer in tokenizers.items()})


def pieces(tokenizer, text: str) -> list[Piece]:
    """Return the tokens of `text`, as `strips` shows them."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, spans = encoding["input_ids"], encoding["offset_mapping"]
    names = tokenizer.convert_ids_to_tokens(ids)
    unknown = [number == tokenizer.unk_token_id and name not in text for number, name in zip(ids, names, strict=True)]
    raw = [b"" if none else token_bytes(tokenizer, name) for none, name in zip(unknown, names, strict=True)]
    shown = [f"✗{name}" if none else "" for none, name in zip(unknown, names, strict=True)]
    at = 0
    while at < len(ids):
        end = at + 1
        whole = None if unknown[at] else _text(raw[at])
        while whole is None and not unknown[at] and end < len(ids) and end - at < 8:   # 4 bytes at most, and a rest
            end += 1
            whole = _text(b"".join(raw[at:end]))
        if whole is None:
            end = at + 1
            shown[at] = shown[at] or f"⟨{raw[at].hex(' ').upper()}⟩"
        elif end == at + 1:
            shown[at] = visible(names[at] if names[at].startswith("##") else whole)
        else:
            shown[at:end] = [f"{visible(whole)} {part}/{end - at}" for part in range(1, end - at + 1)]
        at = end
    return [Piece(name, data, number, text[slice(*span)] if none else "")
            for name, data, number, span, none in zip(shown, raw, ids, spans, unknown, strict=True)]


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def token_bytes(tokenizer, token: str) -> bytes:
    """Return the bytes that a token stands for: of a byte-level vocabulary, of SentencePiece (▁, <0xF0>), of WordPiece."""
    from labutils.checkpoints.tokenizer_sources import byte_letters

    decoder = str(tokenizer.backend_tokenizer.decoder)
    if "ByteLevel" in decoder:
        value = {letter: number for number, letter in enumerate(byte_letters())}
        if all(letter in value for letter in token):
            return bytes(value[letter] for letter in token)
        return token.encode()       # a special token: plain text
    if "ByteFallback" in decoder and (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", token)):
        return bytes([int(byte[1], 16)])
    if "WordPiece" in decoder:
        return token.removeprefix("##").encode()
    return token.replace("▁", " ").encode()


LOST = 0.02     # a share of lost characters above this is marked: a few unknown signs are not


def token_costs(costs: Mapping[str, Mapping[str, tuple[int, float]]]) -> Table:
    """Return a table of what one text costs: language -> tokenizer -> (tokens, share of characters lost).

    The first language is the measure: a cell is shaded from twice its tokens on, darker from four times on. A cell whose
    text is lost is grey and says how much: its count means nothing.
    """
    languages = list(costs)
    base = costs[languages[0]]

    def cell(name: str, tokens: int, lost: float) -> Cell:
        if lost > LOST:
            return Cell(f"{tokens:,}  ✗ {lost:.0%}", "#dddddd")
        times = tokens / base[name][0]
        return Cell(f"{tokens:,}", "#f7c59f" if times >= 4 else "#fdf0c4" if times >= 2 else "")

    rows = tuple((Cell(language), *(cell(name, *each) for name, each in row.items())) for language, row in costs.items())
    caption = f"Tokens. Shaded: from 2 times {languages[0]} on, darker from 4 times on. ✗: share of the characters lost"
    return Table(("", *base), rows, caption, frozenset(range(1, len(base) + 1)))


# --- probabilities -----------------------------------------------------------------------------------------------------


def lens(words: Sequence[Sequence[str]], shares: Sequence[Sequence[float]], caption: str) -> Table:
    """Return a table of the most probable next tokens after each layer; row 0 is the embedding.

    Where the first is the last layer's first, the row is shaded and marked "=". The share is that of the first.
    """
    final = words[-1][0]
    rows = []
    for layer, (names, row) in enumerate(zip(words, shares, strict=True)):
        same = names[0] == final
        shade = "#d3efe4" if same else ""
        rows.append((Cell("embedding" if layer == 0 else f"layer {layer}", shade),
                     Cell(("= " if same else "  ") + visible(names[0]), shade, bold=True), Cell(f"{row[0]:.1f}", shade),
                     *(Cell(visible(name), shade) for name in names[1:])))
    return table(("", "first", "share", *(["second", "third", "fourth", "fifth"][:len(words[0]) - 1])), rows, caption)


def reliability(labels: Sequence[int], title: str, bins: int = 10, **stated: Sequence[float]) -> Picture:
    """Return a reliability diagram: in each bin of stated probability of label 1, how many have it. One line for each way.

    labels: 0 or 1. stated: way -> a probability for each label. The area of a marker grows with the bin's count.
    """
    figure, axes = _figure(6.0, 4.8)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="stated = true")
    words = []
    for (way, values), colour, marker in zip(stated.items(), (BLUE, ORANGE, GREEN), "os^", strict=False):
        filled: dict[int, list[tuple[float, int]]] = {}
        for value, label in zip(values, labels, strict=True):
            filled.setdefault(min(int(value * bins), bins - 1), []).append((value, label))
        points = [(sum(value for value, _ in pairs) / len(pairs), sum(label for _, label in pairs) / len(pairs), len(pairs))
                  for _, pairs in sorted(filled.items())]
        across, up, counts = zip(*points, strict=True)
        name = way.replace("_", " ")
        axes.plot(across, up, color=colour, linewidth=1, marker=marker, markersize=4, label=name)
        axes.scatter(across, up, s=[4 + count for count in counts], color=colour, marker=marker, alpha=0.35)
        words.append(f"{name}: " + ", ".join(f"{a:.2f} → {b:.2f} ({count})" for a, b, count in points))
    axes.set_xlabel("stated probability of “positive” (mean of the bin)")
    axes.set_ylabel("share of the bin that is positive")
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return _picture(figure, f"{title.rstrip('?.')}. Stated → true (count). " + "; ".join(words))


def layer_lines(title: str, unit: str, /, start: int = 0, **ways: Sequence[float]) -> Picture:
    """Return one line for each way, a value for each layer. `unit` names the upper axis.

    start: the number of the first value's layer; layer 0 is the embedding.
    """
    figure, axes = _figure(6.4, 3.6)
    words = []
    for (way, values), colour, marker in zip(ways.items(), (BLUE, ORANGE, GREEN, SKY), "os^D", strict=False):
        name = way.replace("_", " ")
        drawn = [round(float(value), 3) for value in values]    # the same picture where the last bits differ
        axes.plot(range(start, start + len(drawn)), drawn, color=colour, marker=marker, markersize=4, linewidth=1.2, label=name)
        words.append(f"{name} {' '.join(f'{value:.2f}' for value in values)}")
    axes.set_xlabel("layer" if start else "layer (0: embedding)")
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    first = f"layer {start}" if start else "the embedding"
    return _picture(figure, f"{title.rstrip('?.')} ({unit}, from {first} up): " + "; ".join(words))


# --- curves ------------------------------------------------------------------------------------------------------------


def curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str, across: str, up: str,
           band: tuple[float, float, str] | None = None, log: str = "", digits: int = 2, points: int = 4) -> Picture:
    """Return one line for each name -> (x values, y values); `across` and `up` name the axes with their units.

    `band` is (low, high, its name), a grey stripe across; `log` holds "x", "y" or both. The plain form gives the first,
    last and `points` - 2 values between them. Raises ValueError where a line has not as many x as y values.
    """
    figure, axes = _figure(6.6, 4.0)
    words = []
    styles = zip((BLUE, ORANGE, GREEN, SKY, "#CC79A7", "black"), "os^Dv*", ("-", "--", "-.", ":", "-", "--"), strict=True)
    for (name, (xs, ys)), (colour, marker, dash) in zip(lines.items(), styles, strict=False):
        if len(xs) != len(ys):
            raise ValueError(f"The line {name!r} has {len(xs)} x values and {len(ys)} y values.")
        xs, ys = [round(float(x), 6) for x in xs], [round(float(y), digits + 1) for y in ys]
        axes.plot(xs, ys, color=colour, marker=marker, linestyle=dash, markersize=4.5, linewidth=1.4, label=name,
                  markevery=max(1, len(xs) // 8))
        chosen = sorted({round(at * (len(xs) - 1) / (points - 1)) for at in range(points)})
        words.append(f"{name}: " + ", ".join(f"{xs[at]:,g} → {ys[at]:.{digits}f}" for at in chosen))
    if band:
        low, high, meaning = band
        axes.axhspan(low, high, color=GREY, alpha=0.35, linewidth=0, label=meaning)
        words.append(f"grey stripe {low:g} to {high:g}: {meaning}")
    if "x" in log:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for xs, _ in lines.values() for x in xs})
        axes.set_xticks(ticks[::max(1, len(ticks) // 8)], [f"{x:,g}" for x in ticks[::max(1, len(ticks) // 8)]],
                        fontsize=8)
        axes.minorticks_off()
    if "y" in log:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        wide = axes.get_ylim()[1] > 1000 * axes.get_ylim()[0]
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return _picture(figure, f"{title.rstrip('?.')}. {across} → {up}. " + "; ".join(words))


# --- caches ------------------------------------------------------------------------------------------------------------


# Kinds of layers as labutils.arithmetic names them -> the row of the picture. The first that is found in a model counts.
RATIO_ROWS = (
    ("latent", "latent"),
    ("indexed", "indexed, compressed"),
    ("compressed", "indexed, compressed"),
    ("state space", "state space, convolution"),
    ("convolution", "state space, convolution"),
    ("cross attention", "encoder-decoder"),
    ("sliding", "sliding, chunked"),
    ("chunked", "sliding, chunked"),
)


def ratios(types: Mapping[str, tuple[str, float]], most: float = 100) -> Picture:
    """Return how far a formula is off, one point a model type, one row for each kind of cache; 1 is exact.

    types: name -> (kinds of its layers, such as "24 sliding, 8 full"; formula over exact bytes). Points beyond `most` are
    drawn at the edge.
    """
    rows: dict[str, list[float]] = {name: [] for name in ("full attention only", *(row for _, row in RATIO_ROWS))}
    for kinds, ratio in types.values():
        rows[next((row for word, row in RATIO_ROWS if word in kinds), "full attention only")].append(ratio)
    figure, axes = _figure(7.2, 3.6)
    words = []
    for place, (name, values) in enumerate(rows.items()):
        stacks: dict[tuple[float, bool], int] = {}
        for value in sorted(values):
            power = round(math.log10(min(max(value, 1 / most), most)), 1)
            if not power and value != 1:        # nearly exact is not exact: beside the line
                power = math.copysign(0.08, value - 1)
            at = round(10 ** power, 4), value == 1
            stacks[at] = stacks.get(at, 0) + 1
        for (at, exact), count in sorted(stacks.items()):
            axes.scatter(at, place, s=24 + 9 * count, color=BLUE if exact else ORANGE, marker="o" if exact else "D", alpha=0.75,
                         edgecolor="white", linewidth=0.5)
            if count > 1:
                axes.annotate(str(count), (at, place), xytext=(0, 5 + 1.7 * count ** 0.5), textcoords="offset points",
                              ha="center", va="center", fontsize=7.5)
        right = sum(value == 1 for value in values)
        words.append(f"{name} {len(values)} types, {right} exact, from {min(values):.2f} to {max(values):.1f} times")
    axes.axvline(1, color="black", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks([0.01, 0.1, 0.5, 1, 2, 5, 10, 50], ["0.01", "0.1", "0.5", "exact", "×2", "×5", "×10", "×50"])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [f"{name} ({len(values)})" for name, values in rows.items()])
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.set_xlabel("formula ÷ bytes really held; a number counts types at one place")
    title = "The formula fits full attention, and little else"
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return _picture(figure, f"{title} (formula ÷ bytes held): " + "; ".join(words))
