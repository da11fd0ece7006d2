"""The way to the solvers: definitions in SMT-LIB 2, one question, one answer.

An `Encoding` is a list of definitions, each of a fresh constant by a term over earlier
ones, and goals. Per value of the symbols such a list has exactly one model, so the goals
alone decide between `sat` and `unsat`, and in a model every constant has the value that
the schedule gives it.

It comes in parts, each a script of its own: one long script takes z3 more than
linear time to read. Each begins with `machine.smt2`, which says what steps do. What a part
needs of an earlier one it assumes, and the earlier one has it among its goals (`Facts`).
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from .answer import TACTICS, Answer, Deadline, Late, Model, NoModel, OutOfTime

__all__ = [
    "Answer",
    "Asked",
    "Deadline",
    "Encoding",
    "Facts",
    "Late",
    "Model",
    "NoModel",
    "OutOfTime",
    "ScriptPart",
    "boolean",
    "machine",
    "numeral",
]

PART_LINES = 8_000
"""Definitions and goals in a part. Measured on 10^5 steps: 500 take 3.5 s to read, 2 000
1.3 s, 8 000 0.7 s, one part of 150 000 1.1 s; more than one text per solver, 2.5 s."""

LATE_GOALS = 500
"""Number of goals of a closed part that are packed together."""


@cache
def machine() -> str:
    """The machine of `spec/semantics.md` as functions: how each script begins."""
    return Path(__file__).with_name("machine.smt2").read_text(encoding="utf-8")


class ScriptPart:
    """Definitions and goals that stand alone, as SMT-LIB 2 lines after the machine.

    A part that is `closed` is kept packed, in about a tenth of the memory: the text of a long plan
    is many times as large as the plan. It takes goals still, but no line.
    """

    def __init__(self, lines: Iterable[str] = (), goals: Iterable[str] = ()) -> None:
        self._lines = list(lines) or [machine()]
        self._goals = dict.fromkeys(goals)
        self._packed: bytes | None = None
        self._packed_goals: list[bytes] = []

    @property
    def lines(self) -> list[str]:
        """The goals; those of a closed part are unpacked anew each time."""
        if self._packed is None:
            return self._lines
        return [machine(), *_unpacked(self._packed)]

    @property
    def goals(self) -> dict[str, None]:
        """As `lines`."""
        if self._packed is None:
            return self._goals
        packed = (goal for some in self._packed_goals for goal in _unpacked(some))
        return {**dict.fromkeys(packed), **self._goals}

    def __len__(self) -> int:
        """Lines and goals of a part that is open."""
        return len(self._lines) + len(self._goals)

    def ask(self, goal: str) -> None:
        """`goal` is one of those that must be impossible."""
        self._goals[goal] = None
        if self._packed is not None and len(self._goals) >= LATE_GOALS:
            self._pack_goals()

    def close(self) -> None:
        """No line comes any more."""
        self._packed = _packed(self._lines[1:])
        self._lines = []
        self._pack_goals()

    def _pack_goals(self) -> None:
        self._packed_goals.append(_packed(self._goals))
        self._goals = {}

    def assertions(self) -> str:
        """A question to a solver: unsat means that no goal is possible."""
        return "\n".join([*self.lines, _any(self.goals), ""])

    def text(self) -> str:
        """The same as a script that any SMT solver can check. It says no logic; `ALL` fits."""
        return self.assertions() + "(check-sat)\n"


def _packed(lines: Iterable[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode(), level=1)


def _unpacked(packed: bytes) -> list[str]:
    """A line is never empty, so what holds none is no line."""
    text = zlib.decompress(packed).decode()
    return text.split("\n") if text else []


class Asked(Protocol):
    """Who answers (`inquiry.Inquiry`)."""

    def ask(self, part: ScriptPart, tactics: tuple[str, ...]) -> Answer:
        """Asks whether one of the goals of `part` is possible."""
        ...


class Encoding:
    """Definitions and goals in parts; `tactics` are those of z3 that a part is given to."""

    def __init__(self, tactics: tuple[str, ...] = TACTICS) -> None:
        self.tactics = tactics
        self.parts = [ScriptPart()]
        self.part = 0
        """The number of the part that is being written."""
        self._lines = self.parts[-1].lines

    @property
    def is_full(self) -> bool:
        """True if the part is long enough to begin another one."""
        return len(self.parts[-1]) >= PART_LINES

    def cut(self) -> None:
        """Begins another part, where nothing is defined yet."""
        self.parts[-1].close()
        self.parts.append(ScriptPart())
        self.part += 1
        self._lines = self.parts[-1].lines

    def define(self, name: str, sort: str, term: str) -> str:
        self._lines.append(f"(declare-const {name} {sort})(assert (= {name} {term}))")
        return name

    def state(self, line: str) -> None:
        """A declaration or an assumption, as it is."""
        self._lines.append(line)

    def assume(self, name: str, sort: str, value: str, home: int) -> None:
        """A constant of the part `home` again: that part has to prove that it is `value`."""
        self.define(name, sort, value)
        self.parts[home].ask(f"(not (= {name} {value}))")

    def ask(self, goal: str) -> None:
        """`goal` is one of those that must be impossible."""
        self.parts[-1].ask(goal)

    def check(self, asked: Asked, *, all_models: bool = True) -> Answer:
        """Asks about every part, as a script that knows nothing of the others.

        With `all_models` the values of all parts that have a model come together (they
        agree where no symbol is free), else those of the first. Time running out in one
        part leaves the whole undecided.
        """
        values: dict[str, int] | None = None
        for part in self.parts:
            if not part.goals:
                continue
            match answer := asked.ask(part, self.tactics):
                case OutOfTime():
                    return answer
                case Model(model_values):
                    values = {**(values or {}), **model_values}
                    if not all_models:
                        break
        return NoModel() if values is None else Model(values)


def _any(goals: Iterable[str]) -> str:
    """The disjunction of the goals. In SMT-LIB `or` and `and` have two arguments at the least, so
    one that may have fewer begins with `false` or `true`."""
    match list(goals):
        case []:
            return "(assert false)"
        case [goal]:
            return f"(assert {goal})"
        case several:
            return f"(assert (or {' '.join(several)}))"


def numeral(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def boolean(value: bool) -> str:
    return "true" if value else "false"


@dataclass(slots=True)
class _Fact:
    """`constant` holds it since part `home`; it is defined in part `known` too. At home nowhere: it
    never changed and is the term `constant`."""

    constant: str
    claim: bool = False
    number: int = -1
    version: int = 0
    home: int = -1
    known: int = -1


class Facts:
    """Booleans that change along the schedule, in single-assignment form.

    A change defines the next version by a term, in the part of its step. A later part that
    needs it assumes what a plain walk *claims* that it is, and the part that defined it then has
    the claim among its goals. A fact that never changed is its initial term, in every part;
    `initial` tells what a plain walk takes these terms for.
    """

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self.initial = {"false": False}
        self._facts: dict[str, dict[str, _Fact]] = defaultdict(dict)
        self._numbered = 0

    def begin(self, what: str, of: str, term: str, claim: bool) -> None:
        """The fact before the first step, where it is not `false`."""
        self._facts[what][of] = _Fact(term, claim)
        self.initial[term] = claim

    def change(self, what: str, of: str, term: str) -> str:
        """The fact from here on, as a term over facts that were read with `now` before."""
        facts = self._facts[what]
        fact = facts.get(of)
        if fact is None:
            fact = facts[of] = _Fact("false")
        if fact.number < 0:
            fact.number = self._numbered
            self._numbered += 1
        fact.version += 1
        fact.home = fact.known = self.encoding.part
        name = f"{what}{fact.number}_{fact.version}"
        fact.constant = self.encoding.define(name, "Bool", term)
        return fact.constant

    def claim(self, what: str, of: str, value: bool) -> None:
        """The value that a plain walk gives the fact from here on: asked where a part assumes it.
        Nothing is assumed of a fact that never changed."""
        fact = self._facts[what].get(of)
        if fact is not None:
            fact.claim = value

    def now(self, what: str, of: str) -> str:
        """The constant that holds the fact here, or its initial term."""
        fact = self._facts[what].get(of)
        if fact is None:
            return "false"
        if fact.home >= 0 and fact.known != self.encoding.part:
            fact.known = self.encoding.part
            self.encoding.assume(fact.constant, "Bool", boolean(fact.claim), fact.home)
        return fact.constant
