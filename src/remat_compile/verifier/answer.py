"""Limits of a question to a solver, and its possible answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

TACTICS = ("simplify", "propagate-values", "solve-eqs", "smt")
"""The parameters of z3 for encodings that name none."""


@dataclass
class Deadline:
    """A deadline: the seconds left since its creation."""

    limit_s: float
    start_s: float = field(default_factory=lambda: time.monotonic())

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
