"""The tokenizer playground: type a text, see how two tokenizers cut it."""

from collections.abc import Mapping

from labutils import views
from labutils.widgets.explorer import Explorer, text_box


def playground(shelf: Mapping, text: str, left: str | None = None, right: str | None = None) -> Explorer:
    """Explore how two tokenizers of `shelf` (name -> tokenizer) cut a text: tokens, their bytes, their ids.

    left, right: the names to start with, by default the first two.
    """
    import ipywidgets

    names = list(shelf)

    def choice(value: str | None, default: int, description: str):
        return ipywidgets.Dropdown(options=names, value=value or names[min(default, len(names) - 1)], description=description)

    controls = {"text": text_box(text, "text"), "left": choice(left, 0, "left"), "right": choice(right, 1, "right")}

    def draw(text: str, left: str, right: str) -> views.Strips:
        if not text:
            raise ValueError("Type at least one character: there is nothing to cut.")
        return views.strips(text, **{name: shelf[name] for name in dict.fromkeys((left, right))})

    return Explorer(draw, controls, "One text, two tokenizers")
