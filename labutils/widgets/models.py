"""Explorers that run a model: the next token, the stages of a classifier, attention in a padded batch."""

from labutils import views
from labutils.widgets.explorer import Explorer, text_box


def next_token(tokenizer, model, text: str, top: int = 8) -> Explorer:
    """Explore what the model expects next: type a text, see its `top` most probable next tokens."""
    import torch

    def draw(text: str) -> views.Picture:
        if not text:
            raise ValueError("Type at least one character: the model needs something to continue.")
        with torch.inference_mode():
            logits = model(**tokenizer(text, return_tensors="pt").to(model.device)).logits[0, -1]
        probabilities, ids = logits.float().softmax(-1).topk(top)
        words = [views.visible(tokenizer.decode([number])) for number in ids.tolist()]
        return views.bars(words, probabilities.tolist(), "What comes next?", "probability of the next token")

    return Explorer(draw, {"text": text_box(text, "text")}, "Type, and watch the next token")


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

    return Explorer(draw, {"text": text_box(text, "text")}, "One text through every stage")


def attention(tokenizer, model, texts: list[str], layer: int = 0, head: int = 0) -> Explorer:
    """Explore attention in a padded batch: which row, layer and head, which padding side, with the mask or without.

    `model` is an encoder loaded with attn_implementation="eager", the implementation that returns its weights.
    """
    import ipywidgets
    import torch

    config = model.config
    controls = {
        "text": text_box(texts[0], "first text"),
        "row": ipywidgets.Dropdown(options=list(range(len(texts))), value=0, description="row"),
        "layer": ipywidgets.IntSlider(value=layer, min=0, max=config.num_hidden_layers - 1, description="layer"),
        "head": ipywidgets.IntSlider(value=head, min=0, max=config.num_attention_heads - 1, description="head"),
        "side": ipywidgets.Dropdown(options=["right", "left"], value="right", description="padding"),
        "masked": ipywidgets.Checkbox(value=True, description="give the model its attention mask", indent=False,
                                      layout=ipywidgets.Layout(width="auto")),
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
