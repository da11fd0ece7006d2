"""The time of an order with copies, as `simulate` gives it, without building its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ....ir.program import Target
from ....ir.schedule import Direction
from ....ir.semantics.link import Link, Transfer
from .place import Move, copy_ns

_OUT, _FREE, _ISSUE, _BACK = range(4)
"""The events at a boundary, in order."""


@dataclass(frozen=True, slots=True)
class Course:
    """The timing of a step with copies: its nanoseconds; at which boundaries the computations stand
    still, and how long; when each move has gone out, by its number."""

    time_ns: int
    stalls_ns: dict[int, int]
    gone_ns: dict[int, int]

    def starts_ns(self, times: Sequence[int]) -> list[int]:
        """When each entry begins, and the end."""
        late, starts = 0, []
        for boundary, begin in enumerate(accumulate(times, initial=0)):
            late += self.stalls_ns.get(boundary, 0)
            starts.append(begin + late)
        return starts


def time_ns(times: Sequence[int], moves: Sequence[Move], target: Target) -> int:
    """Nanoseconds of entries that take `times`, with these moves, in the order of `steps_of`.
    O(entries + m log m) for m moves."""
    return course_of(times, moves, target).time_ns


def course_of(times: Sequence[int], moves: Sequence[Move], target: Target) -> Course:
    """The same, with what happens when."""
    begins = [0, *accumulate(times)]
    link = _SharedLink(target) if target.shared_bytes_per_s is not None else _FreeLink(target)
    now = last = 0
    stalls: dict[int, int] = {}
    gone: dict[int, int] = {}
    for boundary, what, _, _, k in sorted(_events(moves)):
        now += begins[boundary] - begins[last]
        last = boundary
        arrived = now
        if what in (_OUT, _ISSUE):
            now += target.copy_issue_ns
            link.issue(k, "d2h" if what == _OUT else "h2d", moves[k].gap.size_bytes, now)
        else:
            end = link.end_of(k)
            now = max(now, end)
            if what == _FREE:
                gone[k] = end
        if now > arrived:
            stalls[boundary] = stalls.get(boundary, 0) + now - arrived
    return Course(now + begins[-1] - begins[last], stalls, gone)


def _events(moves: Sequence[Move]) -> list[tuple[int, int, int, int, int]]:
    """Boundary, what, two numbers that tell in which turn, and which move."""
    events = []
    for k, move in enumerate(moves):
        gap = move.gap
        events += [
            (gap.made + 1, _OUT, gap.made, gap.anode, k),
            (move.free, _FREE, gap.made, gap.anode, k),
            (move.issue, _ISSUE, gap.back, gap.made, k),
            (gap.back, _BACK, gap.back, gap.made, k),
        ]
    return events


class _FreeLink:
    """Directions that do not slow each other down: a copy's end is known when it is issued."""

    def __init__(self, target: Target):
        self.target = target
        self.rate = {"d2h": target.d2h_bytes_per_s, "h2d": target.h2d_bytes_per_s}
        self.idle_from = {"d2h": 0, "h2d": 0}
        self.end: dict[int, int] = {}

    def issue(self, k: int, direction: Direction, size: int, now: int) -> None:
        takes = copy_ns(size, self.rate[direction], self.target)
        self.end[k] = self.idle_from[direction] = max(now, self.idle_from[direction]) + takes

    def end_of(self, k: int) -> int:
        return self.end[k]


class _SharedLink:
    def __init__(self, target: Target):
        self.link = Link(target)
        self.flights: dict[int, Transfer] = {}

    def issue(self, k: int, direction: Direction, size: int, now: int) -> None:
        self.flights[k] = self.link.issue(direction, size, now)

    def end_of(self, k: int) -> int:
        return self.link.end_of(self.flights[k])
