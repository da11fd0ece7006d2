"""Liveness as rows of an integer program: shared by the compact and the reduced program.

Events are walked backwards. For each value and each stretch between two events that touch it, a
sum of columns that is 0 or 1 says whether it must be alive there:

    A_before >= A_after            where an event may read it, and A_before >= R
    A_before >= A_after - R        where an event may make it again
    A_before = 1                   where an event that is not optional reads it
    A_before = 0                   where one makes it

Frees are as early as possible, so nothing else decides what is alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..solvers.milp import MilpBuilder


@dataclass(frozen=True, slots=True)
class AliveSum:
    """The liveness of a value: constant + sum of factor * column, 0 or 1."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def any_of(columns: Sequence[int]) -> AliveSum:
        """One of these columns, of which at most one is 1."""
        return AliveSum(0, tuple((column, 1) for column in columns))


NO, YES = AliveSum(0), AliveSum(1)

Definition = tuple[int, list[AliveSum]]
"""A column that is no less than each of these states."""


class LivenessRows:
    """`alive` holds what must be alive after the event that is looked at; `constant` and
    `bytes_of` (per column) are its bytes."""

    def __init__(self, size_A: Sequence[int], room_bytes: int):
        self.size_A = size_A
        self.room = room_bytes
        self.unit = float(max(1, room_bytes))
        self.builder = MilpBuilder()
        self.alive: dict[int, AliveSum] = {}
        self.constant = 0
        self.bytes_of: dict[int, int] = {}
        self.fits = True
        """False where what is alive in any case does not fit."""
        self.definitions: list[Definition] = []
        """Lower bounds of each liveness column, in order of dependence."""

    def get(self, a: int) -> AliveSum:
        return self.alive.get(a, NO)

    def set(self, a: int, new: AliveSum) -> None:
        old = self.get(a)
        if old == new:
            return
        size = self.size_A[a]
        for state, sign in ((old, -size), (new, size)):
            self.constant += sign * state.constant
            for column, factor in state.terms:
                total = self.bytes_of.get(column, 0) + sign * factor
                if total:
                    self.bytes_of[column] = total
                else:
                    self.bytes_of.pop(column, None)
        if new == NO:
            del self.alive[a]
        else:
            self.alive[a] = new

    def unless(self, after: AliveSum, runs: AliveSum, *, alone: bool) -> AliveSum:
        """Before an event that makes it if `runs`. `alone`: that is all the event is good for."""
        if after == NO:
            return NO
        left = dict(after.terms)
        for column, factor in runs.terms:
            left[column] = left.get(column, 0) - factor
        before = AliveSum(after.constant, tuple((column, f) for column, f in left.items() if f))
        if before == NO:
            return NO
        if after == YES:
            return before
        if alone:
            # A replay is of no use but for this result: with R = 1, A_after = 1.
            self.builder.row(before.terms, lower=-float(before.constant))
            return before
        return self.at_least([before])

    def also(self, after: AliveSum, reads: AliveSum) -> AliveSum:
        """Before an event that reads it if `reads`: A_before >= A_after and A_before >= R."""
        if after == YES:
            return YES
        if after == NO:
            return reads
        return self.at_least([after, reads])

    def at_least(self, states: list[AliveSum]) -> AliveSum:
        """A new column that is no less than each of these."""
        column = self.builder.column()
        self.definitions.append((column, states))
        for state in states:
            entries = [(other, -float(factor)) for other, factor in state.terms]
            self.builder.row([(column, 1.0), *entries], lower=float(state.constant))
        return AliveSum(0, ((column, 1),))

    def bound(self, own: int, beside: dict[int, int], room: int) -> None:
        """Row: what is alive, and `own` and `beside` on top, is at most `room` bytes."""
        total = dict(self.bytes_of)
        for column, size in beside.items():
            total[column] = total.get(column, 0) + size
        left = room - self.constant - own
        if left < 0 and not any(size < 0 for size in total.values()):
            self.fits = False
        if sum(size for size in total.values() if size > 0) <= left:
            return
        terms = [(column, size / self.unit) for column, size in total.items() if size]
        if terms:
            self.builder.row(terms, upper=left / self.unit)
