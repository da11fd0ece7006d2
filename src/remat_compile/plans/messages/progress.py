"""Progress of work, on a line of a terminal or under a cell of a notebook, once it takes long."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

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


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Python's generator goes on where it was: `rich` draws from it when it is imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


class _Display(Protocol):
    """Where the last line stands until the work is over."""

    def show(self, text: str) -> None: ...

    def clear(self) -> None: ...


class _Terminal:
    """With a sign of life beside the line."""

    def __init__(self, console: Console, text: str):
        from rich.errors import LiveError
        from rich.text import Text

        self._text = Text
        self._status: Status | None = console.status(Text(text))
        try:
            self._status.start()
        except LiveError:  # a display of the user's holds the terminal
            self._status = None

    def show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(self._text(text))

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()


class _Cell:
    """Under a cell of a notebook; by its own display, as widgets are seldom installed there."""

    def __init__(self, text: str):
        from IPython.display import Pretty, display

        self._pretty = Pretty
        self._handle = display(Pretty(text), display_id=True)

    def show(self, text: str) -> None:
        self._handle.update(self._pretty(text))

    def clear(self) -> None:
        self._handle.update(self._pretty(""))


class _Line:
    """The last thing that was said; or, where nobody looks and it was asked for, every line."""

    def __init__(self, *, always: bool):
        with _same_random_numbers():
            from rich.console import Console
            from rich.text import Text

        self._new_text = Text
        self._console: Console = Console(stderr=True, highlight=False)
        self.is_seen = self._console.is_terminal or self._console.is_jupyter
        self._prints = always and not self.is_seen
        self._text = ""
        self._display: _Display | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(0.0 if always else SLOW_S, self._begin)
        self._timer.daemon = True
        if self.is_seen:
            self._timer.start()

    def say(self, text: str) -> None:
        with self._lock:
            self._text = printable(text)
            if self._display is not None:
                self._display.show(self._text)
            elif self._prints:
                self._console.print(self._new_text(self._text), soft_wrap=True)

    def _begin(self) -> None:
        with self._lock:
            if self._is_over:
                return
            if self._console.is_jupyter:
                self._display = _Cell(self._text)
            else:
                self._display = _Terminal(self._console, self._text)

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._display is not None:
                self._display.clear()
