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

from collections.abc import Iterable
from dataclasses import dataclass, field
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


@cache
def machine() -> str:
    """The machine of `spec/semantics.md` as functions: how each script begins."""
    return Path(__file__).with_name("machine.smt2").read_text(encoding="utf-8")


@dataclass
class ScriptPart:
    """Definitions and goals that stand alone, as SMT-LIB 2 lines after the machine."""

    lines: list[str] = field(default_factory=lambda: [machine()])
    goals: dict[str, None] = field(default_factory=dict)

    def assertions(self) -> str:
        """What a solver is given: unsat means that no goal is possible."""
        return "\n".join([*self.lines, _any(self.goals), ""])

    def text(self) -> str:
        """The same as a script that any SMT solver can check. It says no logic; `ALL` fits."""
        return self.assertions() + "(check-sat)\n"


class Asked(Protocol):
    """Who answers (`inquiry.Inquiry`)."""

    def ask(self, part: ScriptPart, tactics: tuple[str, ...]) -> Answer:
        """Whether one of the goals of `part` is possible."""
        ...


class Encoding:
    """Definitions and goals in parts; `tactics` are those of z3 that a part is given to."""

    def __init__(self, tactics: tuple[str, ...] = TACTICS) -> None:
        self.tactics = tactics
        self.parts = [ScriptPart()]
        self.part = 0
        """The number of the part that is being written."""

    @property
    def is_full(self) -> bool:
        """Whether the part is long enough to begin another one."""
        part = self.parts[-1]
        return len(part.lines) + len(part.goals) >= PART_LINES

    def cut(self) -> None:
        """Begins another part, where nothing is defined yet."""
        self.parts.append(ScriptPart())
        self.part += 1

    def define(self, name: str, sort: str, term: str) -> str:
        self.parts[-1].lines.append(f"(declare-const {name} {sort})(assert (= {name} {term}))")
        return name

    def state(self, line: str) -> None:
        """A declaration or an assumption, as it is."""
        self.parts[-1].lines.append(line)

    def assume(self, name: str, sort: str, value: str, home: int) -> None:
        """A constant of the part `home` again: that part has to prove that it is `value`."""
        self.define(name, sort, value)
        self.parts[home].goals[f"(not (= {name} {value}))"] = None

    def ask(self, goal: str) -> None:
        """`goal` is one of those that must be impossible."""
        self.parts[-1].goals[goal] = None

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
                case Model(found):
                    values = {**(values or {}), **found}
                    if not all_models:
                        break
        return NoModel() if values is None else Model(values)


def _any(goals: Iterable[str]) -> str:
    """That one of the goals holds. In SMT-LIB `or` and `and` have two arguments at the least, so
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


class Facts:
    """Booleans that change along the schedule, in single-assignment form.

    A change defines the next version by a term, in the part of its step. A later part that
    needs it assumes what a plain walk *claims* that it is, and the part that defined it then has
    the claim among its goals. A fact that never changed is its initial term, in every part;
    `initial` tells what a plain walk takes these terms for.
    """

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self._number: dict[tuple[str, str], int] = {}
        self._version: dict[tuple[str, str], int] = {}
        self._first: dict[tuple[str, str], str] = {}
        self.initial = {"false": False}
        self._claim: dict[tuple[str, str], bool] = {}
        self._home: dict[tuple[str, str], int] = {}
        self._constant: dict[tuple[str, str], str] = {}
        self._part = 0

    def begin(self, what: str, of: str, term: str, claim: bool) -> None:
        """The fact before the first step, where it is not `false`."""
        self._first[what, of] = term
        self.initial[term] = claim

    def change(self, what: str, of: str, term: str) -> str:
        """The fact from here on, as a term over facts that were read with `now` before."""
        key = what, of
        if self._part != self.encoding.part:
            self._enter()
        self._version[key] = self._version.get(key, 0) + 1
        self._home[key] = self._part
        self._constant[key] = self.encoding.define(self._name(key), "Bool", term)
        return self._constant[key]

    def claim(self, what: str, of: str, value: bool) -> None:
        """What a plain walk says that the fact is from here on: asked where a part assumes it."""
        self._claim[what, of] = value

    def now(self, what: str, of: str) -> str:
        """The constant that holds the fact here, or its initial term."""
        if self._part != self.encoding.part:
            self._enter()
        key = what, of
        constant = self._constant.get(key)
        if constant is None:
            constant = self._constant[key] = self._recall(key)
        return constant

    def _enter(self) -> None:
        """No constant is defined yet in a part that begins."""
        self._part = self.encoding.part
        self._constant.clear()

    def _recall(self, key: tuple[str, str]) -> str:
        home = self._home.get(key)
        if home is None:
            return self._first.get(key, "false")
        name = self._name(key)
        self.encoding.assume(name, "Bool", boolean(self._claim.get(key, False)), home)
        return name

    def _name(self, key: tuple[str, str]) -> str:
        number = self._number.setdefault(key, len(self._number))
        return f"{key[0]}{number}_{self._version.get(key, 0)}"
