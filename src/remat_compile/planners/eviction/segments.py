"""Cutting the forward into segments, and recomputing it segment by segment.

Shilova 2021, section 2.1 ("previous approaches"), after Chen 2016: the forward is cut
into segments; what crosses a cut is kept; the inside of every segment but the last is
computed a second time just before the backward needs it. On a graph that is no chain,
what crosses is every storage that a later segment reads.

Four layers F0 to F3 in two segments: x2 crosses, so it is kept; x1 is inside of the first, and
is made again by F0 before B7 (cNode 7), which reads it.

    >>> segments = cut_forward(step, 2, "count")
    >>> segments, segment_order(step, segments)
    ([[0, 1], [2, 3]], [0, 1, 2, 3, 4, 5, 6, 0, 7, 8])
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from ..instance import Instance, Order

Weight = Literal["count", "memory"]


def forward_cnodes(instance: Instance) -> list[int]:
    return [c for c, phase in enumerate(instance.phase_C) if phase == "fwd"]


def cut_forward(instance: Instance, segments: int, by: Weight) -> list[list[int]]:
    """At most `segments` runs of forward cNodes of about equal weight.

    Weight is the number of cNodes, or the bytes they write. Each cut may move from its
    place by up to half a segment, to where the fewest bytes cross.
    """
    forward = forward_cnodes(instance)
    weights = [1 if by == "count" else _written(instance, c) for c in forward]
    prefix = list(accumulate(weights))
    total = prefix[-1] if prefix else 0
    crossing = crossing_bytes(instance, forward)
    cuts = [0]
    for j in range(1, min(segments, len(forward))):
        low = bisect_left(prefix, total * (2 * j - 1) / (2 * segments))
        high = bisect_left(prefix, total * (2 * j + 1) / (2 * segments))
        ideal = total * j / segments
        places = range(max(low, cuts[-1]) + 1, min(high, len(forward) - 2) + 2)
        cut = min(
            places,
            key=lambda p: (crossing[p - 1], abs(prefix[p - 1] - ideal)),
            default=cuts[-1],
        )
        if cuts[-1] < cut < len(forward):
            cuts.append(cut)
    return [forward[a:b] for a, b in zip(cuts, [*cuts[1:], len(forward)], strict=True)]


def _written(instance: Instance, c: int) -> int:
    return sum(instance.size_A[a] for a in instance.writes_C[c])


def crossing_bytes(instance: Instance, forward: Sequence[int]) -> list[int]:
    """For each place after a forward cNode, the bytes that later forward cNodes read."""
    last_read: dict[int, int] = {}
    for place, c in enumerate(forward):
        for a in instance.reads_C[c]:
            last_read[a] = place
    change = [0] * (len(forward) + 1)
    for place, c in enumerate(forward):
        for a in instance.writes_C[c]:
            end = last_read.get(a, place)
            change[place] += instance.size_A[a]
            change[end] -= instance.size_A[a]
    return list(accumulate(change))[: len(forward)]


def segment_order(instance: Instance, segments: Sequence[Sequence[int]]) -> Order:
    """The captured order with each segment but the last run again before its backward.

    Of a segment only those cNodes run again whose results the backward asks for,
    directly or through others that run again; what cannot be made again is kept.
    """
    again, at = _recomputations(instance, segments)
    order: Order = []
    for c in instance.capture:
        for segment in at.get(c, ()):
            order += again[segment]
        order.append(c)
    return order


def _recomputations(
    instance: Instance, segments: Sequence[Sequence[int]]
) -> tuple[list[list[int]], dict[int, list[int]]]:
    """The recomputations of each segment, and the cNode before which they run."""
    segment_C = {c: s for s, cs in enumerate(segments[:-1]) for c in cs}
    kept = _kept(instance, segment_C)

    def inside(a: int) -> int:
        """The segment that `a` is inside of, or -1."""
        return -1 if a in kept else segment_C.get(instance.writer_A[a], -1)

    wanted: list[set[int]] = [set() for _ in segments]
    first: dict[int, int] = {}
    for c in instance.capture:
        if c in segment_C or instance.phase_C[c] == "fwd":
            continue
        for a in instance.reads_C[c]:
            s = inside(a)
            if s >= 0:
                first.setdefault(s, c)
                wanted[s].add(instance.writer_A[a])
    again: list[list[int]] = []
    for s, writers in enumerate(wanted):
        stack = list(writers)
        while stack:
            for a in instance.rereads_C[stack.pop()]:
                w = instance.writer_A[a]
                if inside(a) == s and w not in writers:
                    writers.add(w)
                    stack.append(w)
        again.append(sorted(writers))
    at: dict[int, list[int]] = {}
    for s, c in sorted(first.items()):
        at.setdefault(c, []).append(s)
    return again, at


def _kept(instance: Instance, segment_C: dict[int, int]) -> set[int]:
    """aNodes of the forward that are not computed again: those that cross a cut, outputs,
    and those that cannot be made again."""
    kept = set()
    for c in forward_cnodes(instance):
        replayed = set(instance.rewrites_C[c]) if instance.makable_C[c] else set()
        for a in instance.writes_C[c]:
            if instance.kept_A[a] or a not in replayed:
                kept.add(a)
        for a in instance.reads_C[c]:
            if segment_C.get(instance.writer_A[a]) != segment_C.get(c):
                kept.add(a)
    return kept
