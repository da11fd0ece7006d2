"""Cuts the forward of an instance into the children of one level.

In this order: what repeats is cut period by period, at the same places of every period, so that
equal layers become equal children (each in several, where there is room for more); else
H-Partition; else intervals of the order of capture. With `chain` first where a single value
crosses, as often as that can be. Where there are more periods than children,
children are runs of equally many periods (the last one may be shorter, else no two were equal):
n equal layers have O(log n) classes of parts in all.

Twenty-four equal layers and at most eight children: eight times three layers.

    >>> [len(child) for child in children_of(forward, Limits(children=8, leaf=2))]
    [3, 3, 3, 3, 3, 3, 3, 3]
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Literal

from .forward import ForwardGraph
from .h_partition import h_partition

Kind = Literal["auto", "dominators", "intervals", "chain"]

_COVERED = 0.5
"""Runs that cover less of the forward decide nothing."""
_SHARE = 6
"""No group of H-Partition holds more than one part in so many of the forward, so that levels
are few."""


@dataclass(frozen=True)
class Limits:
    """At most `children` parts a level, `leaf` forward cNodes in a part that is not cut again."""

    children: int = 16
    leaf: int = 20
    kind: Kind = "auto"


def children_of(forward: ForwardGraph, limits: Limits) -> list[list[int]]:
    """At least two groups of places, convex, in an order that respects every edge; one where
    the forward is a leaf. Near-linear time where something repeats."""
    n = len(forward)
    if n <= max(1, limits.leaf):
        return [list(range(n))] if n else []
    if limits.kind == "chain" and (pieces := _by_separators(forward, limits)) is not None:
        return pieces
    repeating = limits.kind in ("auto", "chain")
    if repeating and (pieces := _by_repeats(forward, limits)) is not None:
        return pieces
    if limits.kind != "intervals":
        most = max(limits.leaf, -(-n // _SHARE))
        groups = h_partition(forward, limits.children, limits.children, most)
        if groups is not None and len(groups) > 1:
            return groups
    pieces_wanted = max(2, min(limits.children // 2, -(-n // limits.leaf)))
    return interval_partition(forward, pieces_wanted)


def _by_separators(forward: ForwardGraph, limits: Limits) -> list[list[int]] | None:
    """Runs of equally many of the pieces between places where a single value crosses; the last
    may be shorter. None where such places are so few that a run holds much of the forward."""
    n = len(forward)
    cuts = [p + 1 for p, count in enumerate(forward.crossing_P[:-1]) if count == 1]
    step = -(-(len(cuts) + 1) // limits.children)
    bounds = [0, *cuts[step - 1 :: step], n]
    pieces = [list(range(a, b)) for a, b in pairwise(bounds)]
    most = max(limits.leaf, -(-n // _SHARE), 2 * -(-n // limits.children))
    return pieces if len(pieces) > 1 and max(map(len, pieces)) <= most else None


def _by_repeats(forward: ForwardGraph, limits: Limits) -> list[list[int]] | None:
    """Periods, or runs of them, and what stands between; None where too little repeats."""
    n = len(forward)
    runs = runs_of(forward.kinds_P, forward.votes_P, max(4, n // 8))
    if sum(run.length for run in runs) < _COVERED * n:
        return None
    cuts = [_phase(forward, run) for run in runs]
    joined = _periods_a_child(runs, cuts, n, limits)
    if joined is None:
        return None
    bounds = _bounds(runs, cuts, n, joined)
    if joined == 1 and (parts := limits.children // (len(bounds) - 1)) > 1:
        bounds = _finer(forward, runs, cuts, bounds, parts)
    return [list(range(a, b)) for a, b in pairwise(bounds)] if len(bounds) > 2 else None


def _finer(
    forward: ForwardGraph,
    runs: Sequence[Repeat],
    firsts: Sequence[int],
    bounds: Sequence[int],
    parts: int,
) -> list[int]:
    """The bounds with every period cut into about `parts` parts, all at the same places: few
    children see too little of what lies inside of them."""
    crossing = forward.crossing_bytes_P
    cuts = set(bounds)
    for run, first in zip(runs, firsts, strict=True):
        starts = range(first, run.end - run.period + 1, run.period)
        whole = [sum(crossing[s + i] for s in starts) for i in range(run.period)]
        length = -(-run.period // parts)
        for cut in cheapest_cuts(whole, length, length + length // 2)[: parts - 1]:
            cuts.update(s + cut for s in starts)
    return sorted(cuts)


def _phase(forward: ForwardGraph, run: Repeat) -> int:
    """The first cut of a run: where the fewest bytes cross, summed over its periods."""
    crossing = forward.crossing_bytes_P

    def bytes_from(start: int) -> int:
        cuts = range(start, run.end + 1, run.period)
        return sum(crossing[cut - 1] for cut in cuts if 0 < cut < len(forward)) // max(1, len(cuts))

    return min(range(run.start, run.start + run.period), key=lambda s: (bytes_from(s), s))


def _bounds(runs: Sequence[Repeat], firsts: Sequence[int], n: int, joined: int) -> list[int]:
    """The places where children begin and end with so many periods in each."""
    bounds = [0]
    for run, first in zip(runs, firsts, strict=True):
        periods = (run.end - first) // run.period
        last = first + periods * run.period
        step = joined * run.period
        bounds += [cut for cut in (*range(first, last, step), last) if cut > bounds[-1]]
    if bounds[-1] < n:
        bounds.append(n)
    return bounds


def _periods_a_child(
    runs: Sequence[Repeat], firsts: Sequence[int], n: int, limits: Limits
) -> int | None:
    """The least number of periods that leaves few enough children; None where none does."""
    most = max(run.length // run.period for run in runs)
    for joined in range(1, most + 1):
        if len(_bounds(runs, firsts, n, joined)) - 1 <= limits.children:
            return joined if len(_bounds(runs, firsts, n, joined)) > 2 else None
    return None


def interval_partition(forward: ForwardGraph, pieces: int) -> list[list[int]]:
    """Between half and twice as many intervals of places as `pieces` says."""
    n = len(forward)
    length = max(1, -(-n // max(1, pieces)))
    low, high = max(1, -(-length // 2)), max(1, length + length // 2)
    cuts = cheapest_cuts(forward.crossing_bytes_P, low, high)
    return [list(range(a, b)) for a, b in pairwise([0, *cuts, n])]


def cheapest_cuts(crossing: Sequence[int], low: int, high: int) -> list[int]:
    """Places behind which to cut, as many as it takes for pieces of `low` to `high` places (the
    last may be shorter), so that the crossing bytes of the cuts are the least in sum: a shortest
    path over the places, O(N). Here one byte crosses after the third and the fifth place.

    >>> cheapest_cuts([10, 10, 1, 10, 1, 10, 10], 2, 3)
    [3, 5]
    """
    n = len(crossing)
    cost = [0.0] + [inf] * (n - 1)
    origin = [-1] * n
    window: deque[int] = deque()
    for i in range(low, n):
        _enter(window, cost, i - low)
        while window and window[0] < i - high:
            window.popleft()
        if window:
            origin[i] = window[0]
            cost[i] = cost[window[0]] + crossing[i - 1]
    cuts: list[int] = []
    at = min(range(max(0, n - high), n), key=lambda j: (cost[j], -j), default=0)
    while at > 0:
        cuts.append(at)
        at = origin[at]
    return cuts[::-1]


def _enter(window: deque[int], cost: Sequence[float], j: int) -> None:
    """Keeps the places of the window in order of rising cost."""
    if cost[j] == inf:
        return
    while window and cost[window[-1]] > cost[j]:
        window.pop()
    window.append(j)


_TRIED = 8
"""Limit on the periods that are tried, most frequent first."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Entries `start` to `end` (exclusive) repeat with `period`, at least twice."""

    start: int
    end: int
    period: int

    @property
    def length(self) -> int:
        return self.end - self.start


def longest_run(
    kinds: Sequence[Hashable], votes: Sequence[Hashable], start: int, end: int
) -> Repeat | None:
    """The run that covers most of this stretch, the smallest period among equals; None where
    nothing repeats. O(n log n).

    The gaps between neighbouring equal votes are counted, and the few that occur most are tried as
    periods. A vote is an entry with what stands around it: an operator that occurs several times in
    a layer tells nothing of the layer's period, but with its predecessors it does.

    >>> longest_run("xabcabcabcy", "xabcabcabcy", 0, 11)
    Repeat(start=1, end=10, period=3)
    """
    best: Repeat | None = None
    for period in _periods(votes, start, end):
        for run in _runs_with(kinds, start, end, period):
            if best is None or (run.length, -run.period) > (best.length, -best.period):
                best = run
    return best


def runs_of(kinds: Sequence[Hashable], votes: Sequence[Hashable], least: int) -> list[Repeat]:
    """Runs that cover at least `least` entries and do not overlap, from left to right: the
    longest, then those to both sides of it."""
    runs: list[Repeat] = []
    todo = [(0, len(kinds))]
    while todo:
        start, end = todo.pop()
        run = longest_run(kinds, votes, start, end) if end - start >= least else None
        if run is None or run.length < least:
            continue
        runs.append(run)
        todo += [(start, run.start), (run.end, end)]
    return sorted(runs, key=lambda run: run.start)


def _periods(votes: Sequence[Hashable], start: int, end: int) -> list[int]:
    gaps: Counter[int] = Counter()
    last: dict[Hashable, int] = {}
    for i in range(start, end):
        if votes[i] in last:
            gaps[i - last[votes[i]]] += 1
        last[votes[i]] = i
    return [gap for gap, _ in sorted(gaps.items(), key=lambda g: (-g[1], g[0]))[:_TRIED]]


def _runs_with(kinds: Sequence[Hashable], start: int, end: int, period: int) -> Iterator[Repeat]:
    first = start
    for i in range(start, end - period + 1):
        if i + period < end and kinds[i] == kinds[i + period]:
            continue
        if i - first >= period:
            yield Repeat(first, i + period, period)
        first = i + 1
