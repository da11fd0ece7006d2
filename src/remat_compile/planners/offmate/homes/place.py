"""Placement of copies of parameters and gradients in an order, and the schedule.

A *choice* says what has its home on the host, and between which of its uses it is dropped. From it:

1. a parameter is there from its prefetch up to its last use before it is dropped, and one at home
   on the device always;
2. gradients for the host are copied behind their last writer, and freed at the first boundary at
   which the copy has ended if nothing waits, or where the room is needed before that;
3. prefetches stand in the order of the uses that wait for them, each as early as the room allows;
4. `repaired` drops more until all entries fit; `refilled` keeps what has room after all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ....ir.schedule import Compute, Free, Home, Offload, Prefetch, Schedule, Step, Wait
from ...instance import Instance
from ...offload.copies.place import copy_ns, fits_from
from .movable import Grad, MovableOrder, Param

Gap = tuple[str, int, int]
"""A parameter between two uses: it may be gone behind the first, and must be there at the second.
The gap over the end of the step has the last use first; -1 and the end where nobody reads it."""


@dataclass(frozen=True)
class Choice:
    """`dropped` are gaps, `sent` the names of gradients that end on the host. A parameter is at
    home on the host if its gap over the end of the step is dropped, or nobody reads it."""

    dropped: frozenset[Gap] = frozenset()
    sent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fetch:
    """A parameter from the boundary of its prefetch to behind its last use before it goes."""

    param: Param
    issue: int
    first: int
    last: int


def gaps_of(view: MovableOrder, param: Param) -> list[Gap]:
    """The gaps of a parameter with an entry in them, that over the end first."""
    if not param.uses:
        return [(param.name, -1, len(view.order))]
    inner = [(param.name, a, b) for a, b in pairwise(param.uses) if b - a > 1]
    return [(param.name, param.uses[-1], param.uses[0]), *inner]


def is_home_gap(gap: Gap) -> bool:
    """True for the gap over the end of the step."""
    return gap[1] >= gap[2] or gap[1] < 0


def everything(view: MovableOrder) -> Choice:
    """All at home on the host, and dropped between all uses."""
    gaps = (gap for param in view.params for gap in gaps_of(view, param))
    return Choice(frozenset(gaps), frozenset(grad.name for grad in view.grads))


class Placement:
    """A choice in an order under a budget. `room` is what each entry has left; negative where the
    choice does not fit."""

    def __init__(self, view: MovableOrder, limit_bytes: int, choice: Choice):
        self.view, self.limit_bytes = view, limit_bytes
        self.choice = choice
        count = len(view.order)
        self.room: NDArray[np.int64] = np.empty(count, dtype=np.int64)
        self.room[:] = limit_bytes - view.fixed_bytes - np.array(view.acts_bytes, dtype=np.int64)
        self.fetches: list[Fetch] = []
        self.freed: dict[str, int] = {}
        for param in view.params:
            self._stay(param)
        self._gradients()
        self._early()

    @property
    def fits(self) -> bool:
        return bool(self.room.min(initial=0) >= 0)

    def _stay(self, param: Param) -> None:
        home, *inner = gaps_of(self.view, param)
        if home not in self.choice.dropped:
            self.room -= param.size_bytes
            return
        if not param.uses:
            return
        cut = [gap for gap in inner if gap in self.choice.dropped]
        firsts = [param.uses[0], *(gap[2] for gap in cut)]
        lasts = [*(gap[1] for gap in cut), param.uses[-1]]
        for first, last in zip(firsts, lasts, strict=True):
            self.room[first : last + 1] -= param.size_bytes
            self.fetches.append(Fetch(param, first, first, last))

    def _gradients(self) -> None:
        view, target = self.view, self.view.program.target
        count, idle = len(view.order), 0
        leaving: list[tuple[int, Grad]] = []
        for grad in view.grads:
            if grad.name not in self.choice.sent:
                self.room -= grad.existing_bytes
                self.room[grad.made :] -= grad.size_bytes
                continue
            begin = max(idle, view.begins_ns[grad.written + 1])
            idle = begin + copy_ns(grad.size_bytes, target.d2h_bytes_per_s, target)
            free = bisect_left(view.begins_ns, idle, grad.last + 1, count)
            self.freed[grad.name] = free
            self.room[grad.made : free] -= grad.size_bytes
            leaving.append((free, grad))
        for k in np.flatnonzero(self.room < 0).tolist():
            for _, grad in sorted(leaving, key=lambda item: (item[1].written, item[1].name)):
                free = self.freed[grad.name]
                if self.room[k] < 0 and grad.last < k < free:
                    self.room[k:free] += grad.size_bytes
                    self.freed[grad.name] = k

    def _early(self) -> None:
        """Prefetches as early as the room allows, none before the one of an earlier use."""
        ends: dict[str, int] = {}
        placed, before = [], 0
        for fetch in sorted(self.fetches, key=lambda f: (f.first, f.param.name)):
            begin = min(max(before, ends.get(fetch.param.name, 0)), fetch.first)
            before = fits_from(self.room, begin, fetch.first, fetch.param.size_bytes)
            self.room[before : fetch.first] -= fetch.param.size_bytes
            ends[fetch.param.name] = fetch.last + 1
            placed.append(replace(fetch, issue=before))
        self.fetches = placed

    def schedule(self, instance: Instance, planner: str) -> Schedule:
        """The steps. At a boundary: first what gives bytes back, then what takes them, then what
        waits for it."""
        view, count = self.view, len(self.view.order)
        before: list[list[Step]] = [[] for _ in range(count + 1)]
        for name, free in self.freed.items():
            before[free] += [Wait(name), Free(name)]
        for fetch in self.fetches:
            before[fetch.last + 1].append(Free(fetch.param.name))
        for fetch in self.fetches:
            before[fetch.issue].append(Prefetch(fetch.param.name))
        for fetch in self.fetches:
            before[fetch.first].append(Wait(fetch.param.name))
        after: list[list[Step]] = [[] for _ in range(count)]
        for grad in view.grads:
            if grad.name in self.freed:
                after[grad.written].append(Offload(grad.name))
        home = {gap[0] for gap in self.choice.dropped if is_home_gap(gap)} | self.choice.sent
        steps: list[Step] = [Home(name) for name in sorted(home)]
        entry = -1
        for step in instance.schedule(view.order, planner).steps:
            if isinstance(step, Compute):
                entry += 1
                steps += [*(after[entry - 1] if entry else ()), *before[entry], step]
            else:
                steps.append(step)
        steps += [*(after[-1] if count else ()), *before[count]]
        return Schedule("plan", planner, tuple(steps))


def repaired(view: MovableOrder, limit_bytes: int, choice: Choice) -> Placement:
    """With more dropped until all fits, or nothing is left to drop: at the fullest entry, what is
    away for long for its bytes."""
    placement = Placement(view, limit_bytes, choice)
    while not placement.fits:
        k = int(placement.room.argmin())
        ways = list(_ways_at(view, choice, k))
        if not ways:
            return placement
        _, choice = max(ways, key=lambda way: way[0])
        placement = Placement(view, limit_bytes, choice)
    return placement


def _ways_at(view: MovableOrder, choice: Choice, k: int) -> Iterator[tuple[float, Choice]]:
    """Choices that hold less at entry k, each with what it promises: time away by its copies."""
    total = max(1, view.begins_ns[-1])
    for grad in view.grads:
        if grad.name not in choice.sent and (grad.last < k or grad.existing_bytes):
            away = total - view.begins_ns[grad.last + 1]
            yield away / total, replace(choice, sent=choice.sent | {grad.name})
    for param in view.params:
        if k in param.uses or not param.size_bytes:
            continue
        home, *inner = gaps_of(view, param)
        over = [g for g in (home, *inner) if g not in choice.dropped and _is_over(g, k)]
        if not over:
            continue
        gaps = {home, *over}
        away = sum(_away_ns(view, gap) for gap in gaps)
        fetches = len([gap for gap in gaps if gap not in choice.dropped]) or 1
        yield away / fetches / total, replace(choice, dropped=choice.dropped | gaps)


def _is_over(gap: Gap, k: int) -> bool:
    _, last, first = gap
    return k > last or k < first if is_home_gap(gap) else last < k < first


def _away_ns(view: MovableOrder, gap: Gap) -> int:
    _, last, first = gap
    begins = view.begins_ns
    if gap[1] < 0:
        return begins[-1]
    if is_home_gap(gap):
        return begins[-1] - begins[last + 1] + begins[first]
    return begins[first] - begins[last + 1]


def refilled(view: MovableOrder, limit_bytes: int, placement: Placement) -> Placement:
    """Keeps on the device what fits after all, the gaps with the most bytes for their time first;
    gradients last."""
    choice = placement.choice
    sizes = {param.name: param.size_bytes for param in view.params}
    inner = [gap for gap in choice.dropped if not is_home_gap(gap)]
    homes = [gap for gap in choice.dropped if is_home_gap(gap)]
    for gap in sorted(inner, key=lambda gap: (_away_ns(view, gap), gap)) + sorted(
        homes, key=lambda gap: (-sizes[gap[0]], gap)
    ):
        whole = is_home_gap(gap)
        gaps = {g for g in choice.dropped if g == gap or (whole and g[0] == gap[0])}
        less = Placement(view, limit_bytes, replace(choice, dropped=choice.dropped - gaps))
        if less.fits:
            choice, placement = less.choice, less
    for grad in reversed(view.grads):
        if grad.name in choice.sent:
            less = Placement(view, limit_bytes, replace(choice, sent=choice.sent - {grad.name}))
            if less.fits:
                choice, placement = less.choice, less
    return placement
