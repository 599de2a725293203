"""Explorer of a config: which field decides which tensor, and how many parameters that makes."""

from labutils import views
from labutils.widgets.explorer import Explorer

HEAD_DIM = 64


def parameter_map(config) -> Explorer:
    """Explore how a config becomes parameters: move its fields, see every tensor of the decoder, its shape and its share.

    `config`: a LlamaConfig with head_dim 64, whose values are the start. The model is built on the meta device, so no
    size takes memory. More than one expert makes it a mixture of experts (Mixtral's).
    """
    import ipywidgets

    def slider(value: int, least: int, most: int, step: int, name: str):
        return ipywidgets.IntSlider(value=value, min=least, max=most, step=step, description=name,
                                    continuous_update=False, layout=ipywidgets.Layout(width="60%"),
                                    style={"description_width": "9em"})

    controls = {
        "layers": slider(config.num_hidden_layers, 1, 128, 1, "layers"),
        "hidden": slider(config.hidden_size, HEAD_DIM, 16384, HEAD_DIM, "hidden size"),
        "groups": slider(config.num_key_value_heads, 1, 128, 1, "key/value heads"),
        "inner": slider(config.intermediate_size, 64, 65536, 64, "feed-forward size"),
        "vocabulary": slider(config.vocab_size, 1024, 262144, 1024, "vocabulary"),
        "experts": slider(1, 1, 256, 1, "experts"),
        "tied": ipywidgets.Checkbox(value=bool(config.tie_word_embeddings), description="head tied to the embedding",
                                    indent=False),
    }

    def draw(layers: int, hidden: int, groups: int, inner: int, vocabulary: int, experts: int, tied: bool) -> views.Table:
        heads = hidden // HEAD_DIM
        if heads % groups:
            raise ValueError(f"hidden size {hidden} makes {heads} query heads of {HEAD_DIM}; {groups} key/value heads "
                             f"cannot share them evenly. Take a number that divides {heads}.")
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                 "num_key_value_heads": groups, "head_dim": HEAD_DIM, "intermediate_size": inner,
                 "vocab_size": vocabulary, "tie_word_embeddings": tied}
        return tensor_table(sizes if experts == 1 else sizes | {"num_local_experts": experts},
                            "llama" if experts == 1 else "mixtral")

    return Explorer(draw, controls, "From config to parameters")


def tensor_table(sizes: dict, model_type: str) -> views.Table:
    """Return every tensor of the decoder that these config fields build: name, shape, copies, parameters, share."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes))
    tensors: dict[str, list] = {}
    for name, weight in model.named_parameters():
        plain = ".".join("*" if part.isdigit() else part for part in name.removeprefix("model.").split("."))
        tensors.setdefault(plain, [tuple(weight.shape), 0])[1] += 1
    total = model.num_parameters()
    rows = []
    for name, (shape, copies) in tensors.items():
        count = copies * torch.Size(shape).numel()
        share = f"{'█' * round(20 * count / total)} {count / total:.1%}"
        rows.append((name, " × ".join(map(str, shape)), copies, count, share))
    gigabytes = ", ".join(f"{total * size / 1e9:.2f} GB in {name}" for name, size in (("float32", 4), ("bfloat16", 2)))
    return views.table(("tensor", "shape", "copies", "parameters", "share"), rows, f"{total:,} parameters: {gigabytes}")
