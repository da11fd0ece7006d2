"""What slow work in Python says of itself: one line that is written over, for whoever watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeVar

from ..ir.terminal import printable

__all__ = ["Progress", "as_function", "shows_progress"]

Progress = Callable[[str], None] | bool | None
"""A function that takes a line at each stage; True and False show lines always and never; None,
where somebody watches (a terminal, a notebook) and the work takes longer than a moment."""
MOMENT_S = 2.0
WIDTH = 78
P = ParamSpec("P")
T = TypeVar("T")


def shows_progress(function: Callable[P, T]) -> Callable[P, T]:
    """`function` with its keyword `progress` as users give it, a `Progress`; it gets a function
    or None."""

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        asked = given.get("progress")
        if asked is False or (asked is None and not _is_watched()):
            given["progress"] = None
            return function(*args, **given)
        if asked is not None and asked is not True:
            return function(*args, **given)
        line = _Line(0.0 if asked else MOMENT_S)
        given["progress"] = line.say
        try:
            return function(*args, **given)
        finally:
            line.end()

    return call


def as_function(progress: Progress) -> Callable[[str], None] | None:
    """What `shows_progress` left in the keyword."""
    return progress if callable(progress) else None


def _is_watched() -> bool:
    """Whether standard error is a terminal or the output of a notebook's cell."""
    if sys.stderr is None:
        return False
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


@dataclass
class _Line:
    """The latest message on one line of standard error, from `after_s` seconds on."""

    after_s: float
    start_s: float = field(default_factory=time.monotonic)
    written: int = 0
    is_over: bool = False

    def say(self, message: str) -> None:
        passed = time.monotonic() - self.start_s
        if self.is_over or passed < self.after_s:
            return
        self._write(f"[{passed:6.1f} s] {printable(message)}"[:WIDTH])

    def end(self) -> None:
        """Leaves no trace."""
        if self.written and not self.is_over:
            self._write("")
            sys.stderr.write("\r")
        self.is_over = True

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text.ljust(self.written)}")
        sys.stderr.flush()
        self.written = len(text)
