"""Cuts of the order of capture where few bytes cross: the partition that is always there.

Intervals of a topological order are convex whatever the graph. Pieces of about equal length; the
cuts are those of least crossing bytes in sum, by a shortest path over the places, O(N).

Seven places; after the third and the fifth one byte crosses, elsewhere ten. Three pieces of two
or three places each:

    >>> cheapest_cuts([10, 10, 1, 10, 1, 10, 10], 2, 3)
    [3, 5]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from .forward import ForwardGraph


def interval_partition(forward: ForwardGraph, pieces: int) -> list[list[int]]:
    """Between half and twice as many intervals of places as `pieces` says."""
    n = len(forward)
    length = max(1, -(-n // max(1, pieces)))
    low, high = max(1, -(-length // 2)), max(1, length + length // 2)
    cuts = cheapest_cuts(forward.crossing_bytes_P, low, high)
    return [list(range(a, b)) for a, b in pairwise([0, *cuts, n])]


def cheapest_cuts(crossing: Sequence[int], low: int, high: int) -> list[int]:
    """Places behind which to cut, as many as it takes for pieces of `low` to `high` places (the
    last may be shorter), so that the crossing bytes of the cuts are the least in sum."""
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
