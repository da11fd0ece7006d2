"""Pure functions on a graph that planners, frontends and tests share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from ..graph import CALLER_KINDS, Graph
from ..schedule import Compute, Free
from ..semantics.simulate import KEPT_KINDS

K = TypeVar("K", bound=Hashable)


def least_first(before: Mapping[K, Collection[K]], key: Callable[[K], Any]) -> list[K]:
    """The nodes, each behind all that `before` names for it: of those that may come next the least
    by `key`, and of equal ones the least itself. Nodes on a circle, or behind one, are left out.
    O(E log N)."""
    followers: dict[K, list[K]] = defaultdict(list)
    for node, others in before.items():
        for other in others:
            followers[other].append(node)
    waits = {node: len(others) for node, others in before.items()}
    ready = [(key(node), node) for node, count in waits.items() if not count]
    heapify(ready)
    order: list[K] = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for other in followers[node]:
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, (key(other), other))
    return order


def capture_order(graph: Graph) -> tuple[str, ...]:
    """Every cNode once, in the order of capture: the unplanned step."""
    return tuple(c.name for c in graph.cnodes)


def frees_after_last_use(graph: Graph, order: Iterable[str]) -> tuple[Compute | Free, ...]:
    """Steps that run `order` (cNode names, repeats allowed) and free as early as possible.

    An instance of an aNode is freed after its last read before the aNode is written
    again (or the end). The token of a random operator exists from its first to its
    last execution. Caller-held storage, outputs and parameter gradients are not freed.
    Linear in the number of reads.
    """
    names = list(order)
    total = Counter(names)
    runs: Counter[str] = Counter()
    last_event: dict[str, int] = {}
    frees: list[list[str]] = [[] for _ in names]

    for index, name in enumerate(names):
        c = graph.cnode[name]
        runs[name] += 1
        reads = graph.reads(c, runs[name])
        writes = c.results_at(runs[name])
        if c.token and total[name] > 1:
            if runs[name] == 1:
                writes = (*writes, c.token)
            else:
                reads = (*reads, c.token)
        for written in writes:
            if written in last_event:
                frees[last_event[written]].append(written)
            last_event[written] = index
        for read in reads:
            last_event[read] = index
        for ended, _ in c.takes_over:  # its storage goes on under the new name
            last_event.pop(ended, None)

    kept = KEPT_KINDS | CALLER_KINDS
    for name, index in last_event.items():
        frees[index].append(name)
    steps: list[Compute | Free] = []
    for name, freed in zip(names, frees, strict=True):
        steps.append(Compute(name))
        steps.extend(Free(a) for a in freed if graph.anode[a].kind not in kept)
    return tuple(steps)
