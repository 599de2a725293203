"""Explorers: a control, a live computation on the real model, a picture. Each has a static form where nothing runs.

An explorer only ever sets the `value` of an HTML widget, so it works in JupyterLab, Voila and Colab (ipywidgets 7.7 and
8), and a stored notebook shows the picture of its starting values.
"""

from collections.abc import Callable
from typing import Any

from labutils import views

WIDGET = "application/vnd.jupyter.widget-view+json"


class Explorer:
    """Controls over a picture. `draw(**values of the controls)` returns a view from `labutils.views`.

    `controls` maps the parameter names of `draw` to ipywidgets. Where `draw` raises, the explorer shows what it said and
    waits for the next value. `view` is the current picture.
    """

    def __init__(self, draw: Callable[..., Any], controls: dict[str, Any], title: str) -> None:
        import ipywidgets

        self.draw, self.controls, self.title = draw, controls, title
        self.screen = ipywidgets.HTML()
        heading = ipywidgets.HTML(f"<b>{title}</b>")
        self.box = ipywidgets.VBox([heading, *controls.values(), self.screen])
        for control in controls.values():
            control.observe(self._redraw, names="value")
        self.view = None
        self._redraw()

    def _redraw(self, change: dict | None = None) -> None:
        try:
            self.view = self.draw(**{name: control.value for name, control in self.controls.items()})
            self.screen.value = self.view.html() if isinstance(self.view, views.Picture) else self.view._repr_html_()
        except Exception as error:      # shown, not swallowed: a traceback in a widget callback reaches nobody
            import html

            self.view = views.table(("",), [(f"{type(error).__name__}: {error}",)])
            self.screen.value = f"<pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"

    def __repr__(self) -> str:
        return f"[{self.title}, starting values]\n{self.view!r}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data, metadata = {"text/plain": repr(self)}, {}
        if isinstance(self.view, views.Picture):
            picture, metadata = self.view._repr_mimebundle_()
            data["image/png"] = picture["image/png"]
        else:
            data["text/html"] = self.view._repr_html_()
        data[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return data, metadata


def _text(value: str, description: str):
    import ipywidgets

    return ipywidgets.Text(value=value, description=description, continuous_update=True,
                           layout=ipywidgets.Layout(width="95%"))


def next_token(tokenizer, model, text: str, top: int = 8) -> Explorer:
    """Explore what the model expects next: type a text, see its `top` most probable next tokens."""
    import torch

    def draw(text: str) -> views.Picture:
        if not text:
            raise ValueError("Type at least one character: the model needs something to continue.")
        with torch.inference_mode():
            logits = model(**tokenizer(text, return_tensors="pt").to(model.device)).logits[0, -1]
        probabilities, ids = logits.float().softmax(-1).topk(top)
        words = [tokenizer.decode([number]) for number in ids.tolist()]
        return views.bars(words, probabilities.tolist(), "What comes next?", "probability of the next token")

    return Explorer(draw, {"text": _text(text, "text")}, "Type, and watch the next token")


def stages(tokenizer, model, text: str) -> Explorer:
    """Explore the stages of a text classifier: text -> tokens, ids, mask -> logits -> probabilities."""
    import torch

    def draw(text: str) -> views.Table:
        encoding = tokenizer(text, return_tensors="pt", truncation=True)
        with torch.inference_mode():
            logits = model(**encoding.to(model.device)).logits[0].float()
        names = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0].tolist())
        labels = [model.config.id2label[number] for number in range(len(logits))]
        pairs = "   ".join(f"{label} {value:+.2f}" for label, value in zip(labels, logits.tolist(), strict=True))
        shares = "   ".join(f"{label} {value:.3f}" for label, value in zip(labels, logits.softmax(-1).tolist(), strict=True))
        return views.table(("stage", "what it holds"), [
            ("text", repr(text)),
            ("tokens", " ".join(map(views.visible, names))),
            ("input_ids", " ".join(map(str, encoding["input_ids"][0].tolist()))),
            ("attention_mask", " ".join(map(str, encoding["attention_mask"][0].tolist()))),
            ("logits", pairs),
            ("probabilities", shares),
        ])

    return Explorer(draw, {"text": _text(text, "text")}, "One text through every stage")


def attention(tokenizer, model, texts: list[str], layer: int = 0, head: int = 0) -> Explorer:
    """Explore attention in a padded batch: which row, layer and head, which padding side, with the mask or without.

    `model` is an encoder loaded with attn_implementation="eager", the implementation that returns its weights.
    """
    import ipywidgets
    import torch

    config = model.config
    controls = {
        "text": _text(texts[0], "first text"),
        "row": ipywidgets.Dropdown(options=list(range(len(texts))), value=0, description="row"),
        "layer": ipywidgets.IntSlider(value=layer, min=0, max=config.num_hidden_layers - 1, description="layer"),
        "head": ipywidgets.IntSlider(value=head, min=0, max=config.num_attention_heads - 1, description="head"),
        "side": ipywidgets.Dropdown(options=["right", "left"], value="right", description="padding"),
        "masked": ipywidgets.Checkbox(value=True, description="give the model its attention mask"),
    }

    def draw(text: str, row: int, layer: int, head: int, side: str, masked: bool) -> views.Picture:
        encoding = tokenizer([text, *texts[1:]], padding=True, padding_side=side, return_tensors="pt", truncation=True)
        mask = encoding["attention_mask"]
        given = mask if masked else torch.ones_like(mask)
        inputs = {**encoding, "attention_mask": given}
        with torch.inference_mode():
            output = model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}, output_attentions=True)
        names = tokenizer.convert_ids_to_tokens(encoding["input_ids"][row].tolist())
        kind = "with its mask" if masked else "without a mask"
        return views.mask_grid(output.attentions[layer][row, head].float().cpu(), names, mask[row].tolist(),
                               f"Row {row}, layer {layer}, head {head}, {kind}")

    return Explorer(draw, controls, "Where does each token look?")
