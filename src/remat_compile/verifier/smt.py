"""The way to z3: definitions in SMT-LIB 2, one question, one answer.

An `Encoding` is a list of definitions, each of a fresh constant by a term over earlier
ones, and a goal. Such a list has exactly one model, so the goal alone decides between
`sat` and `unsat`, and in a model every constant has the value that the schedule gives it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Answer",
    "Deadline",
    "Encoding",
    "Facts",
    "Model",
    "NoModel",
    "OutOfTime",
    "numeral",
    "prover",
]

CHUNK_LINES = 20_000
TACTICS = ("simplify", "propagate-values", "solve-eqs", "smt")
VALUE = re.compile(r"\(define-fun (\S+) \(\) (?:Bool|Int)\s+(true|false|\d+|\(- \d+\))\)")


@dataclass
class Deadline:
    """Seconds that are left, from the moment it is made."""

    limit_s: float
    start_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.start_s + self.limit_s - time.monotonic()


@dataclass(frozen=True)
class NoModel:
    """`unsat`: the goal is impossible."""


@dataclass(frozen=True)
class Model:
    """`sat`: the value of every constant that the goal depends on."""

    values: Mapping[str, int]


@dataclass(frozen=True)
class OutOfTime:
    """`unknown`, or no time to ask."""

    why: str


Answer = NoModel | Model | OutOfTime


class Encoding:
    """Definitions and a goal (any of `goals`), as SMT-LIB 2 lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.goals: list[str] = []

    def define(self, name: str, sort: Literal["Bool", "Int"], term: str) -> str:
        self.lines.append(f"(declare-const {name} {sort})(assert (= {name} {term}))")
        return name

    def text(self) -> str:
        """A script that any SMT solver can check: unsat means that no goal is possible."""
        return "\n".join([*self.lines, _any(self.goals), "(check-sat)", ""])

    def check(self, deadline: Deadline) -> Answer:
        """Asks z3, in a context of its own, so that threads do not meet."""
        if not self.goals:
            return NoModel()
        import z3

        try:
            context = z3.Context()
            solver = z3.Then(*TACTICS, ctx=context).solver()
            for start in range(0, len(self.lines), CHUNK_LINES):
                if deadline.left_s <= 0:
                    return OutOfTime("the time limit was reached while stating the obligation")
                solver.from_string("".join(self.lines[start : start + CHUNK_LINES]))
            solver.from_string(_any(self.goals))
            if deadline.left_s <= 0:
                return OutOfTime("the time limit was reached while stating the obligation")
            solver.set("timeout", max(1, min(int(deadline.left_s * 1000), 2**31)))
            return _answer(solver, z3)
        except z3.Z3Exception as error:
            return OutOfTime(f"z3: {error}")


def _any(goals: Iterable[str]) -> str:
    return f"(assert (or {' '.join(goals)}))"


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


def numeral(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


class Facts:
    """Booleans that change along the schedule, in single-assignment form.

    A change makes a new version; its constant is defined when something asks for it.
    """

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self._number: dict[tuple[str, str], int] = {}
        self._version: dict[tuple[str, str], int] = {}
        self._value: dict[tuple[str, str], bool] = {}
        self._constant: dict[tuple[str, str], str] = {}

    def set(self, what: str, of: str, value: bool) -> None:
        key = what, of
        self._value[key] = value
        self._version[key] = self._version.get(key, 0) + 1
        self._constant.pop(key, None)

    def now(self, what: str, of: str) -> str:
        """The constant that holds the fact here; a fact that was never set is false."""
        key = what, of
        if key not in self._constant:
            number = self._number.setdefault(key, len(self._number))
            name = f"{what}{number}_{self._version.get(key, 0)}"
            term = "true" if self._value.get(key, False) else "false"
            self._constant[key] = self.encoding.define(name, "Bool", term)
        return self._constant[key]


def prover() -> str:
    """The name and version that a proof is signed with."""
    import z3

    return f"z3 {z3.get_version_string()}"
