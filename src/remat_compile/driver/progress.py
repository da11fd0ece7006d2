"""What is being done, on a line of a terminal or under a cell of a notebook, once it takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.terminal import printable

if TYPE_CHECKING:
    from rich.status import Status

__all__ = ["Progress", "Say", "shown"]

Say = Callable[[str], None]
Progress = Say | bool | None
"""What users give: who is called with each line, whether to show them, or None to show them where
somebody looks."""

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


class _Line:
    """The last thing that was said, with a sign of life beside it; or, where nobody looks and it
    was asked for, every line."""

    def __init__(self, *, always: bool):
        from rich.console import Console

        self._console: Console = Console(stderr=True, highlight=False)
        self.is_seen = self._console.is_terminal or self._console.is_jupyter
        self._prints = always and not self.is_seen
        self._text = ""
        self._status: Status | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(0.0 if always else SLOW_S, self._begin)
        self._timer.daemon = True
        if self.is_seen:
            self._timer.start()

    def say(self, text: str) -> None:
        from rich.text import Text

        with self._lock:
            self._text = printable(text)
            if self._status is not None:
                self._status.update(Text(self._text))
            elif self._prints:
                self._console.print(Text(self._text), soft_wrap=True)

    def _begin(self) -> None:
        from rich.errors import LiveError
        from rich.text import Text

        with self._lock:
            if self._is_over:
                return
            status = self._console.status(Text(self._text))
            with suppress(LiveError):  # a display of the user's holds the terminal
                status.start()
                self._status = status

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._status is not None:
                self._status.stop()
