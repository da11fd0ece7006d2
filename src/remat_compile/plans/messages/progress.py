"""Progress of work, on a line of a terminal or under a cell of a notebook, once it takes long."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]
Progress = Say | bool | None
"""Progress as users give it: who is called with each line, whether to show them, or None to show
them where somebody looks."""

SLOW_S = 2.0
"""Work that is done sooner says nothing by itself."""


@contextmanager
def shown(progress: Progress) -> Iterator[Say | None]:
    """Gives who is told each line of progress, until the end of the block.

    None shows them after two seconds, on standard error if that is a terminal, or in a notebook;
    True at once, and wherever standard error goes; False never. FB0707 for anything else.
    """
    if progress is False:
        yield None
    elif callable(progress):
        yield progress
    elif progress is None or progress is True:
        line = _Line(always=progress is True)
        try:
            yield line.say if line.is_seen or progress else None
        finally:
            line.end()
    else:
        message = f"progress is {progress!r}"
        hint = "give a function that takes a line of text, or True or False"
        raise FBError(Diagnostic("FB0707", message, hint=hint), usage=True)


def _on_terminal(console: Console, text: str) -> Callable[[str | None], None]:
    """Shows a line with a sign of life beside it; then shows other lines, and ends at None."""
    from rich.errors import LiveError
    from rich.text import Text

    status = console.status(Text(text))
    try:
        status.start()
    except LiveError:  # a display of the user's holds the terminal
        return lambda _: None
    return lambda text: status.stop() if text is None else status.update(Text(text))


def _in_cell(text: str) -> Callable[[str | None], None]:
    """The same under a cell; by its own display, as widgets are seldom installed there."""
    from IPython.display import Pretty, display

    handle = display(Pretty(text), display_id=True)
    return lambda text: handle.update(Pretty(text or ""))


class _Line:
    """The last thing that was said; or, where nobody looks and it was asked for, every line."""

    def __init__(self, *, always: bool):
        state = random.getstate()  # `rich` draws from it when it is imported
        from rich.console import Console

        random.setstate(state)
        self._console = Console(stderr=True, highlight=False)
        self.is_seen = self._console.is_terminal or self._console.is_jupyter
        self._prints = always and not self.is_seen
        self._text = ""
        self._show: Callable[[str | None], None] | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(0.0 if always else SLOW_S, self._begin)
        self._timer.daemon = True
        if self.is_seen:
            self._timer.start()

    def say(self, text: str) -> None:
        with self._lock:
            self._text = printable(text)
            if self._show is not None:
                self._show(self._text)
            elif self._prints:
                self._console.print(self._text, soft_wrap=True, markup=False, emoji=False)

    def _begin(self) -> None:
        with self._lock:
            if not self._is_over:
                is_cell = self._console.is_jupyter
                made = _in_cell(self._text) if is_cell else _on_terminal(self._console, self._text)
                self._show = made

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._show is not None:
                self._show(None)
