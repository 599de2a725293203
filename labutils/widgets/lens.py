"""The logit lens: what would the model say if it stopped after this layer?"""

from labutils import views
from labutils.widgets.explorer import Explorer, text_box


def layer_logits(model, inputs, position: int = -1):
    """Return the head's logits for one position after each layer, [layers + 1, vocabulary]; entry 0 is the embedding.

    `model` is a decoder with a final norm, `model.base_model.norm`. The library has applied it to the last entry already.
    """
    import torch

    with torch.inference_mode():
        states = model(**inputs, output_hidden_states=True, logits_to_keep=1).hidden_states
        rows = torch.stack([state[0, position] for state in states])
        return model.get_output_embeddings()(torch.cat([model.base_model.norm(rows[:-1]), rows[-1:]])).float()


def logit_lens(tokenizer, model, text: str, top: int = 3) -> Explorer:
    """Explore what a decoder would say after each layer: type a text, choose how far from its end to look."""
    import ipywidgets

    controls = {"text": text_box(text, "text"),
                "back": ipywidgets.IntSlider(value=0, min=0, max=20, description="tokens back")}

    def draw(text: str, back: int) -> views.Table:
        inputs = tokenizer(text, return_tensors="pt").to(model.device)
        ids = inputs["input_ids"][0].tolist()
        if back >= len(ids):
            raise ValueError(f"This text has {len(ids)} token(s); {back} back from the last there is none.")
        shares, numbers = layer_logits(model, inputs, len(ids) - 1 - back).softmax(-1).topk(top)
        words = [[tokenizer.decode([number]) for number in row] for row in numbers.tolist()]
        seen = tokenizer.decode([ids[len(ids) - 1 - back]])
        return views.lens(words, shares.tolist(), f"After each layer, what follows “{views.visible(seen)}”?")

    return Explorer(draw, controls, "What would it say after each layer?")
