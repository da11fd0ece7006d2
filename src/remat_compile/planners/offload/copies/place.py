"""Placement of copies, waits and frees in an order, for all planners of offload.

A planner says in which order cNodes run and which gaps it would have on the host. Here is decided
which of them are needed, and where `offload`, `wait`, `free`, `prefetch` and `hostfree` stand:

1. *Out*, forward. Each copy out starts behind the cNode that made the tensor. Its `wait` and `free`
   stand as late as they can: just before the first entry that would be over the budget without
   them, the copies that were issued first before others. What never has to go is not moved.
   For a fixed order and set no other place of the waits takes less time: delaying one past entries
   that fit lets it overlap them and moves nothing else.
2. *Back*. First, from the end, what could stay all the time after all is not moved. The others
   come back in the order in which they are read, each as soon as its bytes fit from there on: the
   same mirrored, since bytes are taken when a copy is issued. Where a link is shared by both ways,
   that may slow copies out down. So there is a second way: from the end, the tensor that is read
   last first, no earlier than the link needs to be done in time if nothing ever waits.
3. `simulate` has the last word on bytes and time.

Shilova 2021, chapter 3 (no-wait, ordered; Proposition 1 for the way back), with release at the
`wait` instead of continuously.

Room for 3 of 4 tensors, x0 to x3, made by entries 0 to 3 and read by 7 to 4: before entry 3, which
needs room, x0 is waited for and freed. Entry 4 frees x3, so x0 may come back from boundary 5 on,
where its prefetch stands. In the second way it stands at boundary 6, as it takes 1 entry of time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ....ir.program import Target
from ....ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Step, Wait
from ...instance import Instance, Order
from .gaps import Gap

_AT_ONCE = 1024
"""Limit on the entries examined at once."""


@dataclass(frozen=True, slots=True)
class Move:
    """A gap on the host: `free` is the boundary of `wait` and `free`, `issue` that of
    `prefetch`."""

    gap: Gap
    free: int
    issue: int


def copy_ns(size_bytes: int, rate: int | None, target: Target) -> int:
    """Nanoseconds of a copy that runs alone."""
    return target.copy_latency_ns + (-(-size_bytes * 10**9 // rate) if rate else 0)


Sent = Sequence[tuple[Gap, int]]
"""Gaps and the boundaries before which they are gone."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """An order and what does not depend on what is moved: bytes during each entry, the caller's
    left out, and at the end; nanoseconds of each entry."""

    order: Order
    profile: NDArray[np.int64]
    times: Sequence[int]

    @staticmethod
    def of(instance: Instance, order: Order) -> Frame:
        """Linear."""
        profile = [*instance.profile(order), _kept_bytes(instance)]
        return Frame(order, np.array(profile, dtype=np.int64), times_of(instance, order))


def _kept_bytes(inst: Instance) -> int:
    """The storages that exist at the end of the step."""
    ended = set(inst.ends_C)
    return sum(
        inst.size_A[a]
        for a, writer in enumerate(inst.writer_A)
        if writer >= 0 and inst.kept_A[a] and a not in ended
    )


def place(
    instance: Instance, frame: Frame, gaps: Iterable[Gap], limit_bytes: int, *, early: bool = True
) -> list[Move] | None:
    """Moves among `gaps` that keep the order within `limit_bytes` on the device and the target's
    host bytes; None where all of them are too few. Where `early`, copies back are issued as soon as
    bytes allow, in the order in which they are read; else when the link needs it.

    Gaps are tried in the given order where several may go. O(n log n), and for the way back
    O(gaps x how early they come back) additions in arrays.
    """
    sent = send(instance, frame, gaps, limit_bytes)
    return None if sent is None else bring_back(instance, frame, sent, limit_bytes, early=early)


def send(instance: Instance, frame: Frame, gaps: Iterable[Gap], limit_bytes: int) -> Sent | None:
    """The way out of `place`: those of the gaps that have to go, and the boundary before which
    each is gone."""
    room = _room(instance, frame, limit_bytes)
    host_bytes = instance.program.target.host_bytes
    return _out(room, _within_host(list(gaps), host_bytes, len(frame.order)))


def bring_back(
    instance: Instance, frame: Frame, sent: Sent, limit_bytes: int, *, early: bool
) -> list[Move]:
    """The way back of `place`."""
    room = _room(instance, frame, limit_bytes)
    room += _held(len(room), [(free, gap.back, gap.size_bytes) for gap, free in sent])
    if early:
        return sorted(_early(room, sent), key=_in_turn)
    clock = [0, *accumulate(frame.times)]
    return sorted(_late(room, sent, clock, instance.program.target), key=_in_turn)


def _room(instance: Instance, frame: Frame, limit_bytes: int) -> NDArray[np.int64]:
    """During each entry what is left of the budget; the end has room for everything."""
    room = limit_bytes - instance.base_bytes - frame.profile
    room[-1] = np.int64(1) << 60
    return room


def within(instance: Instance, frame: Frame, moves: Sequence[Move], limit_bytes: int) -> bool:
    """True if an order with these moves respects `limit_bytes` and the target's host bytes, as
    `simulate` counts. Linear."""
    count = len(frame.profile)
    away = _held(count, [(move.free, move.issue, move.gap.size_bytes) for move in moves])
    if int((frame.profile - away).max()) > limit_bytes - instance.base_bytes:
        return False
    if (host := instance.program.target.host_bytes) is None:
        return True
    spans = [(move.gap.made + 1, move.gap.back + 1, move.gap.size_bytes) for move in moves]
    return int(_held(count, spans).max()) <= host


def _held(count: int, spans: Iterable[tuple[int, int, int]]) -> NDArray[np.int64]:
    """Sums of the sizes of (begin, end, size) at `count` places, each from its begin to before its
    end."""
    change: NDArray[np.int64] = np.zeros(count + 1, dtype=np.int64)
    for begin, end, size in spans:
        change[begin] += size
        change[end] -= size
    return np.cumsum(change[:-1])


def _in_turn(move: Move) -> tuple[int, int]:
    return move.gap.made, move.gap.anode


def times_of(instance: Instance, order: Order) -> list[int]:
    """Nanoseconds of each entry."""
    seen = bytearray(len(instance.names_C))
    times = []
    for c in order:
        times.append(instance.retime_C[c] if seen[c] else instance.time_C[c])
        seen[c] = 1
    return times


def _within_host(gaps: Sequence[Gap], host_bytes: int | None, count: int) -> Sequence[Gap]:
    """The gaps, in their order, that the host can hold beside those before them."""
    if host_bytes is None or sum(gap.size_bytes for gap in gaps) <= host_bytes:
        return gaps
    held: NDArray[np.int64] = np.zeros(count + 1, dtype=np.int64)
    fitting = []
    for gap in gaps:
        span = held[gap.made : gap.back + 1]
        if int(span.max()) + gap.size_bytes <= host_bytes:
            span += gap.size_bytes
            fitting.append(gap)
    return fitting


def _out(room: NDArray[np.int64], gaps: Sequence[Gap]) -> list[tuple[Gap, int]] | None:
    """For each gap that has to go, the boundary before which it is gone."""
    opens: dict[int, list[int]] = {}
    closes: dict[int, list[int]] = {}
    for turn, gap in enumerate(gaps):
        opens.setdefault(gap.last + 1, []).append(turn)
    waiting: list[int] = []
    freed: dict[int, int] = {}
    away = 0
    for k, spare in enumerate(room.tolist()[:-1]):
        for turn in opens.get(k, ()):
            heappush(waiting, turn)
        away -= sum(gaps[turn].size_bytes for turn in closes.pop(k, ()))
        while spare + away < 0 and waiting:
            turn = heappop(waiting)
            gap = gaps[turn]
            if gap.back > k:
                freed[turn] = k
                away += gap.size_bytes
                closes.setdefault(gap.back, []).append(turn)
        if spare + away < 0:
            return None
    return [(gaps[turn], k) for turn, k in freed.items()]


def _early(room: NDArray[np.int64], freed: Sequence[tuple[Gap, int]]) -> Iterator[Move]:
    leaving = []
    full = 0
    for gap, free in sorted(freed, key=lambda item: -item[0].back):
        size = gap.size_bytes
        if not (free <= full < gap.back and room[full] < size):  # looked at before all others
            full = free + int(room[free : gap.back].argmin())
        if room[full] < size:
            leaving.append((gap, free))
        else:
            room[free : gap.back] -= size
    before = 0
    for gap, free in sorted(leaving, key=lambda item: (item[0].back, item[0].made)):
        begin = min(max(before, free), gap.back)
        before = fits_from(room, begin, gap.back, gap.size_bytes)
        room[before : gap.back] -= gap.size_bytes
        yield Move(gap, free, before)


def fits_from(room: NDArray[np.int64], begin: int, end: int, size: int) -> int:
    """The first boundary from `begin` on from which there is room up to `end`."""
    for high in range(end, begin, -_AT_ONCE):
        low = max(begin, high - _AT_ONCE)
        full = np.flatnonzero(room[low:high] < size)
        if full.size:
            return low + int(full[-1]) + 1
    return begin


def _late(
    room: NDArray[np.int64],
    freed: Sequence[tuple[Gap, int]],
    clock: Sequence[int],
    target: Target,
) -> Iterator[Move]:
    link_ns = clock[-1]
    for gap, free in sorted(freed, key=lambda item: -item[0].back):
        size = gap.size_bytes
        takes = copy_ns(size, target.h2d_bytes_per_s, target)
        wanted = min(clock[min(gap.back, len(clock) - 1)], link_ns) - takes
        begin = min(max(free, bisect_right(clock, wanted) - 1), gap.back)
        issue = fits_from(room, begin, gap.back, size)
        if issue == free or int(room[free : gap.back].min()) >= size:
            room[free : gap.back] -= size
            continue  # it can stay after all
        room[issue : gap.back] -= size
        link_ns = max(wanted, clock[issue])
        yield Move(gap, free, issue)


def steps_of(
    instance: Instance, order: Order, moves: Sequence[Move], planner: str, *, lazy: bool = True
) -> Schedule:
    """The schedule with these moves; all else is freed after its last use. Without `lazy` a
    tensor is waited for and freed at once behind its last use before the gap."""
    names = instance.names_A
    count = len(order)
    before: list[list[Step]] = [[] for _ in range(count + 1)]
    after: list[list[Step]] = [[] for _ in range(count)]
    for move in moves:
        after[move.gap.made].append(Offload(names[move.gap.anode]))
    # At a boundary: first what gives bytes back, then what takes them, then what waits for them.
    by_copy = sorted(moves, key=lambda move: (move.gap.made, move.gap.anode))
    for move in by_copy:
        name = names[move.gap.anode]
        before[move.free if lazy else move.gap.last + 1] += [Wait(name), Free(name)]
    by_deadline = sorted(moves, key=lambda move: (move.gap.back, move.gap.made))
    for move in by_deadline:
        before[move.issue].append(Prefetch(names[move.gap.anode]))
    for move in by_deadline:
        name = names[move.gap.anode]
        before[move.gap.back] += [Wait(name), HostFree(name)]
    plain = iter(instance.schedule(order, planner).steps)
    steps: list[Step] = []
    entry = -1
    for step in plain:
        if isinstance(step, Compute):
            entry += 1
            steps += [*(after[entry - 1] if entry else ()), *before[entry], step]
        else:
            steps.append(step)
    steps += [*(after[-1] if count else ()), *before[count]]
    return Schedule("plan", planner, tuple(steps))
