"""Where barriers stand: around each group of computations that run again.

XLA merges equal computations. What runs again is told apart from its first execution by
a barrier on what it reads, and is kept from running too early because what was computed
last, the latest cotangent among it, goes through the same barrier. One barrier per
group: a barrier on every operator would keep XLA from fusing them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir.graph import ACCUMULATE_OP, CALLER_KINDS, Graph
from ...ir.schedule import Prefetch, Schedule
from .._names import loss_index
from .order import History, Numbered, numbered

__all__ = ["Barrier", "barriers"]

_SUMS = (ACCUMULATE_OP, "aten.add.Tensor")

K = int(os.environ.get("J5_K", "1000000"))


@dataclass(frozen=True)
class Barrier:
    """What goes through a barrier: aNodes on the device, host copies, the random key.

    `anchors` are values that what follows does not read: the latest ones, which order it
    after what made them.
    """

    sources: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    key: bool = False

    def __or__(self, other: Barrier) -> Barrier:
        sources = tuple(dict.fromkeys((*self.sources, *other.sources)))
        anchors = tuple(n for n in dict.fromkeys((*self.anchors, *other.anchors)) if n not in sources)
        hosts = tuple(dict.fromkeys((*self.hosts, *other.hosts)))
        return Barrier(sources, hosts, anchors, self.key or other.key)


def barriers(graph: Graph, schedule: Schedule) -> dict[int, Barrier]:
    """The barrier before each step that has one.

    A group is a run of computations that run again, and of prefetches, which no first
    execution interrupts and in which no computation occurs twice.
    """
    history = History(graph, schedule)
    found: dict[int, Barrier] = {}
    group: _Group | None = None
    start, border = 0, loss_index(graph, schedule)
    scattered = _scattered(graph)

    def put(index: int, barrier: Barrier) -> None:
        found[index] = found[index] | barrier if index in found else barrier

    def end(index: int) -> None:
        if group is not None and len(group.members) >= K:
            names = tuple(n for n in group.written if history.is_read(n, index))
            put(index, Barrier(names))

    for now in numbered(graph, schedule.steps):
        if isinstance(now.step, Prefetch) or now.execution > 1:
            if group is None or (now.cnode is not None and now.cnode.name in group.members):
                # What is saved has already gone through the barrier at the loss.
                since = max(start, border) if now.index > border else start
                end(now.index)
                group = _Group(graph, history.latest(since, now.index))
                start = now.index
            group.add(now)
            put(start, group.barrier())
        elif now.cnode is not None:
            end(now.index)
            group = None
        if now.cnode is not None and now.cnode.call.op in _SUMS:
            terms = (n for n in graph.reads(now.cnode, now.execution) if n in scattered)
            put(now.index, Barrier(tuple(terms)))
    return {i: b for i, b in found.items() if b.sources or b.hosts or b.key}


def _scattered(graph: Graph) -> frozenset[str]:
    """Gradients that are added up by integer indices. XLA would add such a sum and another
    term in one operation, and the sum of both would leave no trace."""
    return frozenset(
        result
        for c in graph.in_phase("bwd")
        if any(graph.anode[name].dtype in ("i64", "i32") for name in graph.reads(c))
        for result in c.results
    )


@dataclass
class _Group:
    graph: Graph
    latest: tuple[str, ...]
    members: set[str] = field(default_factory=set)
    written: dict[str, None] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    sources: dict[str, None] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    key: bool = False

    def add(self, now: Numbered) -> None:
        if isinstance(now.step, Prefetch):
            self.hosts[now.step.anode] = None
            self._wrote([now.step.anode], fresh=True)
            return
        c = now.cnode
        assert c is not None
        self.members.add(c.name)
        self.key |= c.token is not None
        reads = self.graph.reads(c, now.execution)
        outside = [name for name in reads if name not in self.written]
        held = [name for name in outside if self.graph.anode[name].kind in CALLER_KINDS]
        self.sources.update(dict.fromkeys(name for name in outside if name not in held))
        told_apart = c.token is not None or any(
            name in self.fresh or name in self.sources for name in reads
        )
        if held and not told_apart:
            # It reads only constants and what the caller holds, best an input: it is small.
            kinds = {name: self.graph.anode[name].kind for name in held}
            self.sources[min(held, key=lambda name: kinds[name] == "param")] = None
            told_apart = True
        self._wrote(c.results_at(now.execution), fresh=told_apart)

    def _wrote(self, names: Iterable[str], *, fresh: bool) -> None:
        self.written.update(dict.fromkeys(names))
        if fresh:
            self.fresh.update(names)

    def barrier(self) -> Barrier:
        anchors = tuple(name for name in self.latest if name not in self.sources)
        return Barrier(tuple(self.sources), tuple(self.hosts), anchors, self.key)
