"""The base of every explorer: controls over a picture.

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


def text_box(value: str, description: str):
    import ipywidgets

    return ipywidgets.Text(value=value, description=description, continuous_update=True,
                           layout=ipywidgets.Layout(width="95%"))
