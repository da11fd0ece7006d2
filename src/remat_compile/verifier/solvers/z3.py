"""z3, in the process."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..answer import TACTICS, Answer, Deadline, Model, NoModel, OutOfTime

GRACE_S = 0.2
"""Seconds by which z3 may be late before it is interrupted, and between interruptions."""

QUESTIONS = 100
"""Number of questions in one context of z3."""

VALUE = re.compile(r"\(define-fun (\S+) \(\) (?:Bool|Int)\s+(true|false|\d+|\(- \d+\))\)")


@dataclass(frozen=True)
class Z3:
    """z3 with a sequence of its tactics."""

    tactics: tuple[str, ...] = TACTICS
    name: str = "z3"

    @property
    def version(self) -> str:
        import z3

        return str(z3.get_version_string())

    def check(self, text: str, deadline: Deadline) -> Answer:
        late = OutOfTime("the time limit was reached while stating the obligation")
        if deadline.left_s <= 0:
            return late
        import z3

        try:
            context = _MINE.take()
            solver = z3.Then(*self.tactics, ctx=context).solver()
            solver.from_string(text)
            if deadline.left_s <= 0:
                return late
            solver.set("timeout", max(1, min(int(deadline.left_s * 1000), 2**31)))
            with _interrupted(context, deadline):
                answer = _answer(solver, z3)
        except z3.Z3Exception as error:
            return OutOfTime(f"z3: {error}")
        if not isinstance(answer, OutOfTime) and deadline.left_s > 0:
            _MINE.give_back(context)  # nobody has interrupted it
        return answer


class _Contexts(threading.local):
    """A context for one question after the other, of each thread its own: to make one takes
    longer than to answer a small question. One that was interrupted or that failed is not used
    again, and none for more than QUESTIONS, since it keeps what it has read."""

    def __init__(self) -> None:
        self._context: Any = None
        self._left = 0

    def take(self) -> Any:
        import z3

        context, self._context = self._context, None
        if context is None or self._left == 0:
            context, self._left = z3.Context(), QUESTIONS
        self._left -= 1
        return context

    def give_back(self, context: Any) -> None:
        self._context = context


_MINE = _Contexts()


@contextmanager
def _interrupted(context: Any, deadline: Deadline) -> Iterator[None]:
    """Interrupts z3 past the deadline: some of its tactics overrun their own timeout."""
    done = threading.Event()

    def watch() -> None:
        if not done.wait(max(deadline.left_s, 0) + GRACE_S):
            while not done.wait(GRACE_S):
                context.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _answer(solver: Any, z3: Any) -> Answer:
    result = solver.check()
    if result == z3.unsat:
        return NoModel()
    if result == z3.sat:
        pairs = VALUE.findall(solver.model().sexpr())
        return Model({name: _number(value) for name, value in pairs})
    return OutOfTime(f"z3: {solver.reason_unknown()}")


def _number(text: str) -> int:
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if text.isdigit() else -int(text[3:-1])
