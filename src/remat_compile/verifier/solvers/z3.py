"""z3, in the process."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..answer import TACTICS, Answer, Deadline, Model, NoModel, OutOfTime

__all__ = ["Z3"]

GRACE_S = 0.2
"""Seconds by which z3 may be late before it is interrupted, and between interruptions."""

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
            context = z3.Context()
            solver = z3.Then(*self.tactics, ctx=context).solver()
            solver.from_string(text)
            if deadline.left_s <= 0:
                return late
            solver.set("timeout", max(1, min(int(deadline.left_s * 1000), 2**31)))
            with _interrupted(context, deadline):
                return _answer(solver, z3)
        except z3.Z3Exception as error:
            return OutOfTime(f"z3: {error}")


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
        found = VALUE.findall(solver.model().sexpr())
        return Model({name: _number(value) for name, value in found})
    return OutOfTime(f"z3: {solver.reason_unknown()}")


def _number(text: str) -> int:
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if text.isdigit() else -int(text[3:-1])
