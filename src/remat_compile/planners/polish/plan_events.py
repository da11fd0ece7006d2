"""A plan with copies as the events of a window: what it runs and moves, and what it might.

Entries are positions in the plan's order, events also the options of the window; a boundary of
events is just before one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..instance import Instance, Order
from ..offload.copies.clock import course_of
from ..offload.copies.gaps import Gap
from ..offload.copies.place import Frame, Move, copy_ns
from ..programs.events import PossibleRun, Window, order_of, window_events
from .window_program import Taken
from .window_rows import Detour

_NEAR = (-8, -4, -2, -1, 0, 1, 2, 4, 8)
"""Which boundaries of the plan's own `free` or `prefetch`, from the one about when a copy ends or
must begin, are offered."""


@dataclass(frozen=True, slots=True)
class _Touch:
    """An event uses a tensor, or makes it; the end is one of what is kept."""

    event: int
    makes: bool
    certain: bool
    """Not optional."""
    runs: bool
    """In the plan."""


class PlanEvents:
    """`order` with `moves`, and the options of `window`. Linear."""

    def __init__(self, instance: Instance, order: Order, moves: Sequence[Move], window: Window):
        self.inst, self.moves = instance, moves
        self.target = instance.program.target
        self.events, self.runs = window_events(instance, order, window)
        self.count = len(self.events)
        self.at = [*self._entries(self.runs), self.count]
        """The event of each entry, and the end."""
        times = Frame.of(instance, order).times
        self.course = course_of(times, moves, self.target)
        self.starts_ns = self.course.starts_ns(times)
        self.touches = _touches(instance, self.events, self.runs)

    def _entries(self, runs: set[int]) -> list[int]:
        return [e for e, event in enumerate(self.events) if not event.optional or e in runs]

    def stage(self, boundary: int) -> int | None:
        """The cNode that runs first, for the first time, at or behind a boundary."""
        later = (event.cnode for event in self.events[boundary:] if event.first)
        return next(later, None)

    def start_ns(self, boundary: int) -> int:
        """When the plan comes to a boundary of events."""
        return self.starts_ns[min(self._entry(boundary), len(self.starts_ns) - 1)]

    def wait(self, anode: int) -> tuple[int, int] | None:
        """The longest time between two events that use a tensor and are not optional."""
        used = [touch for touch in self.touches[anode] if touch.certain]
        longest = max(pairwise(used), key=self._length_ns, default=None)
        return None if longest is None else (longest[0].event, longest[1].event)

    def fixed(self, move: Move) -> Detour:
        """A move of the plan as it is."""
        gap = move.gap
        ends = self.at[gap.made], self.at[gap.last], self.at[gap.back]
        return self._detour(gap.anode, ends, {self.at[move.free]}, {self.at[move.issue]}, True)

    def open(self, anode: int) -> list[Detour]:
        """The detours that a tensor may take: as the plan uses it, and as it would be used if
        nothing optional ran."""
        detours: dict[tuple[int, int], Detour] = {}
        touches = self.touches[anode]
        for used in ([t for t in touches if t.runs], [t for t in touches if t.certain]):
            longest = max(pairwise(used), key=self._length_ns, default=None)
            if longest is None or self._length_ns(longest) <= 0:
                continue
            last, back = longest[0].event, longest[1].event
            made = max((t.event for t in used if t.makes and t.event <= last), default=None)
            if made is not None and (last, back) not in detours:
                ends = made, last, back
                frees, issues = self._frees(anode, *ends), self._issues(anode, *ends)
                detours[last, back] = self._detour(anode, ends, frees, issues, False)
        return list(detours.values())

    def _length_ns(self, ends: tuple[_Touch, _Touch]) -> int:
        return self.start_ns(ends[1].event) - self.start_ns(ends[0].event + 1)

    def _entry(self, boundary: int) -> int:
        """The first entry at or behind a boundary of events."""
        return bisect_left(self.at, boundary)

    def _frees(self, anode: int, made: int, last: int, back: int) -> set[int]:
        """Boundaries about when its copy out has ended, behind those of what is made before."""
        takes = copy_ns(self.inst.size_A[anode], self.target.d2h_bytes_per_s, self.target)
        gone = [
            self.course.gone_ns[k]
            for k, move in enumerate(self.moves)
            if self.at[move.gap.made] < made
        ]
        ready_ns = max([self.start_ns(made + 1), *gone]) + takes
        own = {m.free for m in self.moves if (m.gap.anode, self.at[m.gap.last]) == (anode, last)}
        pool = {move.free for move in self.moves}
        return self._around(pool, ready_ns, last, back, own | {self._entry(last + 1)})

    def _issues(self, anode: int, made: int, last: int, back: int) -> set[int]:
        """Boundaries about when it has to be on its way back."""
        takes = copy_ns(self.inst.size_A[anode], self.target.h2d_bytes_per_s, self.target)
        own = {m.issue for m in self.moves if (m.gap.anode, self.at[m.gap.last]) == (anode, last)}
        pool = {move.issue for move in self.moves}
        return self._around(pool, self.start_ns(back) - takes, last, back, own) | {back}

    def _around(
        self, pool: set[int], moment_ns: int, last: int, back: int, own: set[int]
    ) -> set[int]:
        """A few of the entries in the pool, and those at a moment."""
        low, high = self._entry(last + 1), self._entry(back)
        ranked = sorted(pool)
        middle = bisect_left(self.starts_ns, moment_ns)
        near = bisect_left(ranked, middle)
        chosen = {ranked[near + i] for i in _NEAR if 0 <= near + i < len(ranked)}
        chosen |= {middle - 1, middle, *own}
        return {self.at[i] for i in chosen if low <= i <= high}

    def _detour(
        self, anode: int, ends: tuple[int, int, int], frees: set[int], issues: set[int], fixed: bool
    ) -> Detour:
        made, last, back = ends
        against = tuple(
            touch.event
            for touch in self.touches[anode]
            if not touch.certain
            and (last < touch.event < back or (touch.makes and made < touch.event <= last))
        )
        needs = made if self.events[made].optional else -1
        at = tuple(sorted(frees)), tuple(sorted(issues))
        return Detour(anode, self.inst.size_A[anode], *ends, *at, against, needs, fixed)

    def plan_of(self, runs: set[int], taken: Sequence[Taken]) -> tuple[Order, list[Move]]:
        """The entries of a point. A way back that would overtake one that is read earlier
        is issued with that."""
        entries = self._entries(runs)
        moves: list[Move] = []
        for detour, free, issue in taken:
            gap = self._gap(detour, entries)
            if gap is not None:
                free, issue = bisect_left(entries, free), bisect_left(entries, issue)
                moves.append(Move(gap, max(free, gap.last + 1), issue))
        return order_of(self.events, runs), list(_in_turn(moves))

    def _gap(self, detour: Detour, entries: Sequence[int]) -> Gap | None:
        """The detour between the executions that use the tensor in fact; None if none does."""
        present = {*entries, self.count}
        uses = [t.event for t in self.touches[detour.anode] if t.event in present]
        last = max((e for e in uses if e <= detour.last), default=None)
        back = min((e for e in uses if e >= detour.back), default=None)
        if last is None or back is None:
            return None
        made, last, back = (bisect_left(entries, e) for e in (detour.made, last, back))
        return Gap(detour.anode, detour.size_bytes, made, last, back)


def _in_turn(moves: Sequence[Move]) -> Iterator[Move]:
    latest = 0
    for move in sorted(moves, key=lambda move: (move.gap.back, move.gap.made)):
        latest = max(latest, move.issue)
        issue = min(latest, move.gap.back)
        if move.free < issue:
            yield Move(move.gap, move.free, issue)


def _touches(
    inst: Instance, events: Sequence[PossibleRun], runs: set[int]
) -> dict[int, list[_Touch]]:
    """For each tensor the events that use it or make it, rising."""
    touches: dict[int, list[_Touch]] = defaultdict(list)
    for e, event in enumerate(events):
        c, certain = event.cnode, not event.optional
        in_plan = certain or e in runs
        for a in inst.reads_C[c] if event.first else inst.rereads_C[c]:
            touches[a].append(_Touch(e, False, certain, in_plan))
        if (token := inst.token_C[c]) >= 0:
            touches[token].append(_Touch(e, event.first, certain, in_plan))
        for a in inst.writes_C[c] if event.first else inst.rewrites_C[c]:
            # What is kept and made again is dropped: there may be no copy of it in flight.
            makes = event.first or not inst.kept_A[a]
            touches[a].append(_Touch(e, makes, certain, in_plan))
    ended = set(inst.ends_C)
    for a, used in touches.items():
        if inst.kept_A[a] and a not in ended:
            used.append(_Touch(len(events), False, True, True))
    return touches
