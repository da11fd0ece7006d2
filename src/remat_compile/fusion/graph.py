"""The graph around fused cNodes: what is left of it, in an order in which it can be run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

from ..ir.graph import CALLER_KINDS, PHASES, CNode, Graph
from ..ir.schedule import Compute, Schedule


def with_fused(
    graph: Graph, fused: Sequence[CNode], schedule: Schedule
) -> tuple[Graph, frozenset[str]]:
    """The graph of what `schedule` runs: the fused cNodes, and those of which an execution stands
    by itself.

    With the names of fused ones that keep it from having an order: such as read a term of a sum
    that was made again, and the sum.
    """
    runs = {step.cnode for step in schedule.steps if isinstance(step, Compute)}
    kept = [c for c in graph.cnodes if c.name in runs]
    forward = {c.name for c in (*kept, *fused) if c.phase == "fwd"}
    holder = {name: c.name for c in fused for name in _members(c, graph)}
    cnodes = [_belonging(c, forward, holder) for c in (*kept, *fused)]
    written = {name for c in cnodes for name in (*c.results, *([c.token] if c.token else []))}
    anodes = tuple(a for a in graph.anodes if a.kind in CALLER_KINDS or a.name in written)
    names = {a.name for a in anodes}
    views = tuple(v for v in graph.views if v.base in names)
    place = {c.name: i for i, c in enumerate(graph.cnodes)}
    for c in fused:
        place[c.name] = max(place[graph.writer[name].name] for name in c.results)
    half = replace(graph, anodes=anodes, views=views, cnodes=tuple(cnodes))
    order = _sorted(half, place)
    left = {c.name for c in fused} - {c.name for c in order}
    ended = {half.reads(c)[0] for c in half.cnodes if c.is_accumulate}
    at_fault = {name for name in left if not ended.isdisjoint(half.reads(half.cnode[name]))}
    return replace(half, cnodes=order), frozenset(at_fault or left)


def _members(c: CNode, graph: Graph) -> Set[str]:
    """The cNodes whose results a forward region makes."""
    made = {name for inner in c.call.region for name in inner.writes if name is not None}
    writers = {graph.writer[name].name for name in made if name in graph.writer}
    return writers if c.phase == "fwd" else set()


def _belonging(c: CNode, forward: Set[str], holder: dict[str, str]) -> CNode:
    of = dict.fromkeys(holder.get(name, name) for name in c.of)
    return replace(c, of=tuple(name for name in of if name in forward))


def _sorted(graph: Graph, place: dict[str, int]) -> tuple[CNode, ...]:
    """As captured where that can be: by phase, each after what it reads, and a reader of a sum
    before what goes on with its storage."""
    writer = graph.writer
    after: dict[str, set[str]] = {c.name: set() for c in graph.cnodes}
    for c in graph.cnodes:
        reads = {*graph.reads(c), *graph.reads(c, 2)}
        after[c.name] |= {writer[name].name for name in reads if name in writer}
        if c.is_accumulate:
            ended = graph.reads(c)[0]
            after[c.name] |= {r.name for r in graph.readers[ended]} - {c.name}
    stream = [c.name for c in graph.cnodes if c.token is not None or c.is_loss]
    for before, now in pairwise(stream):
        after[now].add(before)
    order: list[CNode] = []
    followers: dict[str, list[str]] = {name: [] for name in after}
    for name, others in after.items():
        for other in others:
            followers[other].append(name)
    ready = [_key(graph, name, place) for name, before in after.items() if not before]
    heapq.heapify(ready)
    while ready:
        *_, name = heapq.heappop(ready)
        order.append(graph.cnode[name])
        for other in followers[name]:
            after[other].discard(name)
            if not after[other]:
                heapq.heappush(ready, _key(graph, other, place))
    return tuple(order)


def _key(graph: Graph, name: str, place: dict[str, int]) -> tuple[int, int, str]:
    return PHASES.index(graph.cnode[name].phase), place[name], name
