"""The load of a plan's copies on the link, and the step's time on a slower one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from ...ir.program import Program, Target
from ...ir.schedule import Direction, Schedule
from ...ir.semantics.simulate import Copy, Trace, simulate

_TOLERATED = Fraction(105, 100)
_TRIES = 20


def slower(target: Target, share: Fraction) -> Target:
    """The target with a link of so much of its bandwidth, rounded down to at least 1 B/s."""

    def of(rate: int | None) -> int | None:
        return None if rate is None else max(1, int(rate * share))

    return replace(
        target,
        d2h_bytes_per_s=of(target.d2h_bytes_per_s),
        h2d_bytes_per_s=of(target.h2d_bytes_per_s),
        both_bytes_per_s=of(target.both_bytes_per_s),
    )


@dataclass(frozen=True)
class Traffic:
    """A plan with copies and its trace."""

    program: Program
    schedule: Schedule
    trace: Trace

    def moved_bytes(self, direction: Direction) -> int:
        sizes = self.trace.anode_bytes
        return sum(sizes[copy.anode] for copy in self._of(direction))

    def busy_ns(self, direction: Direction) -> int:
        """The time of the copies of this direction, which never overlap."""
        return sum(copy.end_ns - copy.start_ns for copy in self._of(direction))

    def _of(self, direction: Direction) -> list[Copy]:
        return [copy for copy in self.trace.copies if copy.direction == direction]

    def time_on(self, target: Target) -> int:
        """Nanoseconds of the step, its schedule unchanged, on another link."""
        return simulate(replace(self.program, target=target), self.schedule).time_ns

    def time_at(self, share: Fraction) -> int:
        """Nanoseconds with so much of the bandwidth, all else as it is."""
        return self.time_on(slower(self.program.target, share))

    @cached_property
    def least_share(self) -> Fraction | None:
        """The least share of the bandwidth, to 2^-20, at which the step takes at most 1.05 times
        as long; None where no rate is known, 0 where even the least does. Found by halving: where
        the two directions slow each other down, a still lower share might do as well."""
        target = self.program.target
        if target.d2h_bytes_per_s is None and target.h2d_bytes_per_s is None:
            return None
        most = self.trace.time_ns * _TOLERATED
        low, high = Fraction(0), Fraction(1)
        for _ in range(_TRIES):
            middle = (low + high) / 2
            if self.time_at(middle) <= most:
                high = middle
            else:
                low = middle
        return high
