"""The way to z3: definitions in SMT-LIB 2, one question, one answer.

An `Encoding` is a list of definitions, each of a fresh constant by a term over earlier
ones, and goals. Per value of the symbols such a list has exactly one model, so the goals
alone decide between `sat` and `unsat`, and in a model every constant has the value that
the schedule gives it.

It comes in parts, each a script of its own: one long script takes z3 more than
linear time to read. What a part needs of an earlier one it defines again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Answer",
    "Deadline",
    "Encoding",
    "Facts",
    "Late",
    "Model",
    "NoModel",
    "OutOfTime",
    "Part",
    "check_part",
    "numeral",
    "prover",
]

PART_LINES = 8_000
"""Definitions and goals in a part. Measured on 10^5 steps: 500 take 3.5 s to read, 2 000
1.3 s, 8 000 0.7 s, one part of 150 000 1.1 s; more than one text per solver, 2.5 s."""

TACTICS = ("simplify", "propagate-values", "solve-eqs", "smt")
GRACE_S = 0.2
"""Seconds by which z3 may be late before it is interrupted, and between interruptions."""

VALUE = re.compile(r"\(define-fun (\S+) \(\) (?:Bool|Int)\s+(true|false|\d+|\(- \d+\))\)")


@dataclass
class Deadline:
    """Seconds that are left, from the moment it is made."""

    limit_s: float
    start_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.start_s + self.limit_s - time.monotonic()

    def check(self) -> None:
        """Raises `Late` once nothing is left: for loops of plain arithmetic."""
        if self.left_s <= 0:
            raise Late


class Late(Exception):
    """The time limit was reached in plain arithmetic; whoever began it answers `OutOfTime`."""


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


@dataclass
class Part:
    """Definitions and goals that stand alone, as SMT-LIB 2 lines."""

    lines: list[str] = field(default_factory=list)
    goals: dict[str, None] = field(default_factory=dict)

    def text(self) -> str:
        """A script that any SMT solver can check: unsat means that no goal is possible."""
        return "\n".join([*self.lines, _any(self.goals), "(check-sat)", ""])


class Encoding:
    """Definitions and goals in parts; `tactics` are those of z3 that a part is given to."""

    def __init__(self, tactics: tuple[str, ...] = TACTICS) -> None:
        self.tactics = tactics
        self.parts = [Part()]

    @property
    def part(self) -> int:
        """The number of the part that is being written."""
        return len(self.parts) - 1

    @property
    def is_full(self) -> bool:
        """Whether the part is long enough to begin another one."""
        part = self.parts[-1]
        return len(part.lines) + len(part.goals) >= PART_LINES

    def cut(self) -> None:
        """Begins another part, where nothing is defined yet."""
        self.parts.append(Part())

    def define(self, name: str, sort: str, term: str) -> str:
        self.parts[-1].lines.append(f"(declare-const {name} {sort})(assert (= {name} {term}))")
        return name

    def state(self, line: str) -> None:
        """A declaration or an assumption, as it is."""
        self.parts[-1].lines.append(line)

    def ask(self, goal: str) -> None:
        """`goal` is one of those that must be impossible."""
        self.parts[-1].goals[goal] = None

    def check(self, deadline: Deadline, *, all_models: bool = True) -> Answer:
        """Asks z3 about every part, in a context of its own, so that threads do not meet.

        With `all_models` the values of all parts that have a model come together (they
        agree where no symbol is free), else those of the first. Time running out in one
        part leaves the whole undecided.
        """
        values: dict[str, int] | None = None
        for part in self.parts:
            if not part.goals:
                continue
            match answer := check_part(part, self.tactics, deadline):
                case OutOfTime():
                    return answer
                case Model(found):
                    values = {**(values or {}), **found}
                    if not all_models:
                        break
        return NoModel() if values is None else Model(values)


def check_part(part: Part, tactics: tuple[str, ...], deadline: Deadline) -> Answer:
    """Whether one of the goals is possible."""
    late = OutOfTime("the time limit was reached while stating the obligation")
    if deadline.left_s <= 0:
        return late
    import z3

    try:
        context = z3.Context()
        solver = z3.Then(*tactics, ctx=context).solver()
        solver.from_string("".join(part.lines) + _any(part.goals))
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

    A change makes a new version; its constant is defined when something asks for it, in
    every part that asks.
    """

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self._number: dict[tuple[str, str], int] = {}
        self._version: dict[tuple[str, str], int] = {}
        self._value: dict[tuple[str, str], bool] = {}
        self._constant: dict[tuple[str, str], str] = {}
        self._part = 0

    def set(self, what: str, of: str, value: bool) -> None:
        key = what, of
        self._value[key] = value
        self._version[key] = self._version.get(key, 0) + 1
        self._constant.pop(key, None)

    def now(self, what: str, of: str) -> str:
        """The constant that holds the fact here; a fact that was never set is false."""
        if self._part != self.encoding.part:
            self._part = self.encoding.part
            self._constant.clear()
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
