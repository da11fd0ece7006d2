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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .forward import ForwardGraph
from .h_partition import h_partition
from .intervals import cheapest_cuts, interval_partition
from .periods import Repeat, runs_of

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
    """With every period cut into about `parts` parts, all at the same places: few children see
    too little of what lies inside of them."""
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
    """Where children begin and end with so many periods in each."""
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
