"""The cheapest way to a state: what the exhaustive oracles share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

S = TypeVar("S", bound=Hashable)
N = TypeVar("N", int, float)


def least_cost(
    start: S,
    free: N,
    done: Callable[[S], bool],
    moves: Callable[[S], Iterable[tuple[N, S]]],
) -> N | None:
    """Dijkstra from `start`, which costs `free` (0); None where no state that is done can be
    reached. `moves` gives the price of each next state."""
    best = {start: free}
    number = count()
    queue = [(free, next(number), start)]
    while queue:
        cost, _, state = heappop(queue)
        if best[state] < cost:
            continue
        if done(state):
            return cost
        for price, after in moves(state):
            total = cost + price
            if after not in best or total < best[after]:
                best[after] = total
                heappush(queue, (total, next(number), after))
    return None
