"""One line on stderr that says how far a long step is."""

import sys
import time


def say(text: str) -> None:
    """Write one line to stderr."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Rewrites one line: "label  41 of 93 MB". Silent for a step that ends within a second."""

    def __init__(self, label: str, total: int):
        self.label, self.total, self.done = label, max(total, 1), 0
        self.shown = time.monotonic()
        self.wrote = False

    def add(self, count: int) -> None:
        """Count `count` more bytes."""
        self.at(self.done + count)

    def at(self, done: int) -> None:
        """Set the count to `done` bytes."""
        self.done = done
        if time.monotonic() - self.shown >= 1:
            self._show()

    def _show(self) -> None:
        self.shown, self.wrote = time.monotonic(), True
        text = f"\r  {self.label}  {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB "
        print(text, end="", file=sys.stderr, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.wrote:
            if kind is None:
                self.done = self.total
                self._show()
            print(file=sys.stderr, flush=True)
