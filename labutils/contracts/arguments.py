"""What `match` and `first_divergence` say about an argument that is not what they compare."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labutils.errors import LabError


class InputError(LabError, TypeError):
    """An argument is not what the function compares, or is not whole."""


def kind(value) -> str:
    """Return the full name of a value's type."""
    return f"{type(value).__module__}.{type(value).__name__}"


def require_tokenizer(tokenizer) -> None:
    """Raise InputError, with the way out, for anything but a transformers tokenizer."""
    if isinstance(tokenizer, str | Path):
        raise InputError(f"match compares loaded objects; {str(tokenizer)!r} is a name. "
                         "Pass AutoTokenizer.from_pretrained(name).")
    if hasattr(tokenizer, "get_input_embeddings"):
        raise InputError(f"The first argument is a model ({type(tokenizer).__name__}). The order is "
                         "match(tokenizer, model).")
    if hasattr(tokenizer, "tokenizer") and not hasattr(tokenizer, "get_vocab"):
        raise InputError(f"{type(tokenizer).__name__} holds a tokenizer. Pass its .tokenizer.")
    if not hasattr(tokenizer, "get_added_vocab"):
        cure = ("Wrap it: PreTrainedTokenizerFast(tokenizer_object=...)." if hasattr(tokenizer, "get_vocab")
                else "Pass what AutoTokenizer.from_pretrained returns.")
        raise InputError(f"{kind(tokenizer)} is not a transformers tokenizer. {cure}")


def require_model(model) -> None:
    """Raise InputError, with the way out, for anything but a loaded model with a token embedding."""
    if isinstance(model, str | Path):
        raise InputError(f"match compares loaded objects; {str(model)!r} is a name. Pass a loaded model, e.g. "
                         "AutoModelForCausalLM.from_pretrained(name).")
    if isinstance(model, type):
        raise InputError(f"{model.__name__} is a class. Pass a loaded model: {model.__name__}.from_pretrained(name).")
    if hasattr(model, "get_vocab"):
        raise InputError(f"The second argument is a tokenizer ({type(model).__name__}). The order is "
                         "match(tokenizer, model).")
    if not hasattr(model, "get_input_embeddings") or not hasattr(model, "config"):
        hint = " Pass its .model." if hasattr(model, "model") else ""
        raise InputError(f"{kind(model)} is not a transformers model.{hint}")
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        embedding = None
    if len(getattr(getattr(embedding, "weight", None), "shape", ())) != 2:
        raise InputError(f"{type(model).__name__} has no token embedding, so no tokenizer belongs to it.")


def checked_probes(probes) -> Mapping[str, Sequence[int]]:
    """Return texts and their ids, an empty mapping for None. Raises InputError."""
    if probes is None:
        return {}
    if not isinstance(probes, Mapping) or not all(
            isinstance(text, str) and not isinstance(ids, str | int) for text, ids in probes.items()):
        raise InputError(f"probes maps texts to their ids, e.g. {{'Hello': [19556]}}; this is {probes!r}.")
    return probes


def checked_info(info) -> Mapping[str, Any] | None:
    """Return the loading information as it is. Raises InputError when it is none."""
    if info is None:
        return None
    needed = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if not isinstance(info, Mapping) or any(name not in info for name in needed):
        raise InputError("loading_info is the second value of from_pretrained(..., output_loading_info=True), a "
                         f"dictionary with {', '.join(needed)}; this is {kind(info)}.")
    return info
