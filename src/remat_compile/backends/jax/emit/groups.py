"""Placement of barriers: around each group of computations that run again.

XLA merges equal computations. What runs again is told apart from its first execution by
a barrier on what it reads (so are two computations of the model that are the same), and is
kept from running too early because what was computed last, the latest cotangent among it, goes
through the same barrier. One barrier per group: a barrier on every operator would keep XLA from
fusing them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....ir.graph import ACCUMULATE_OP, CALLER_KINDS, CNode, Graph
from ....ir.schedule import Prefetch, Schedule
from ...python.names import loss_index
from .order import AccessHistory, Numbered, numbered
from .twins import twins

if TYPE_CHECKING:
    from .shared_work import SharedWork

SMALL_GROUP = 3
"""Groups of fewer members have no barrier at their end: they may be fused with what reads
them. Larger ones are segments, all of whose results are kept for a while anyway."""

STRIDE = 5
"""Computations after which a barrier keeps XLA to the order of the plan, where no group has
begun; a region counts by its calls. Between them it may fuse and move what it likes. Without those
in the forward it makes what is saved only at the loss, and keeps what that is made of until
then."""

_SUMS = (ACCUMULATE_OP, "aten.add.Tensor")


@dataclass(frozen=True)
class Barrier:
    """The values that pass a barrier: aNodes on the device, host copies, the random key.

    `anchors` are values that what follows does not read: the latest ones, which order it
    after what made them.
    """

    sources: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    key: bool = False

    def __or__(self, other: Barrier) -> Barrier:
        sources = tuple(dict.fromkeys((*self.sources, *other.sources)))
        anchors = tuple(
            n for n in dict.fromkeys((*self.anchors, *other.anchors)) if n not in sources
        )
        hosts = tuple(dict.fromkeys((*self.hosts, *other.hosts)))
        return Barrier(sources, hosts, anchors, self.key or other.key)


def barriers(graph: Graph, schedule: Schedule, shared: SharedWork) -> dict[int, Barrier]:
    """The barrier before each step that has one."""
    walk = _Placement(graph, schedule, shared)
    for now in numbered(graph, schedule.steps):
        walk.step(now)
    return {i: b for i, b in walk.barriers.items() if b.sources or b.hosts or b.key or b.anchors}


class _Placement:
    """Goes through a schedule. A group is a run of computations that run again, and of
    prefetches, which no first execution interrupts and in which none occurs twice.

    In the backward, all that is read between one barrier and the next goes through the
    first of them: nothing can be computed before its turn.
    """

    def __init__(self, graph: Graph, schedule: Schedule, shared: SharedWork):
        self.graph = graph
        self.history = AccessHistory(graph, schedule)
        self.barriers: dict[int, Barrier] = {}
        self._border = loss_index(graph, schedule)
        self._scattered = _scattered(graph)
        self._twins = twins(graph)
        self._backward_of = _backward_of(graph)
        self._shared = shared
        self._group: _Group | None = None
        self._start = 0
        self._since = 0
        self._written: set[str] = set()

    def step(self, now: Numbered) -> None:
        if now.index == self._border:
            # What is saved has already gone through the barrier at the loss.
            self._open(now.index)
        if isinstance(now.step, Prefetch) or now.execution > 1:
            if self._group is None or self._repeats(now):
                self._end(now.index)
                self._group = _Group(self.graph, self.history.latest(self._start, now.index))
                self._open(now.index)
            self._group.add(now)
            self._put(self._start, self._group.barrier())
        elif now.cnode is not None:
            self._end(now.index)
            self._group = None
            self._since += max(1, len(now.cnode.call.region))
            if self._since > STRIDE:
                anchors = self.history.latest(self._start, now.index)
                self._put(now.index, Barrier((), anchors=anchors))
                self._open(now.index)
        if now.cnode is not None and now.cnode.name in self._twins:
            self._tell_apart(now)
        if now.cnode is not None and any(part.op in _SUMS for part in now.cnode.call.parts()):
            reads = self.graph.reads(now.cnode, now.execution)
            self._put(now.index, Barrier(tuple(n for n in reads if n in self._scattered)))
        self._gate(now)

    def _tell_apart(self, now: Numbered) -> None:
        """A barrier before what makes values that were made before, in a group as well: there both
        may run again after one barrier. A region in the backward that does so the first time
        stands for a computation that runs again: it waits for what was made last."""
        assert now.cnode is not None
        waits = now.cnode.is_fused and now.index > self._border and now.execution == 1
        anchors = self.history.latest(self._start, now.index) if waits else ()
        sources = self._twins[now.cnode.name]
        self._put(now.index, Barrier(sources) | Barrier((), anchors=anchors))
        if waits:
            self._open(now.index)

    def _open(self, index: int) -> None:
        self._start, self._since = index, 0
        self._written = set()

    def _gate(self, now: Numbered) -> None:
        if isinstance(now.step, Prefetch):
            # What comes back is not what was there when the barrier stood.
            self._written.add(now.step.anode)
        if now.cnode is None:
            return
        if now.index > self._border and self._start in self.barriers:
            reads = self.graph.reads(now.cnode, now.execution)
            anode = self.graph.anode
            old = (n for n in reads if n not in self._written and anode[n].kind not in CALLER_KINDS)
            self._put(self._start, Barrier(tuple(old)))
        self._written.update(now.made)

    def _repeats(self, now: Numbered) -> bool:
        members = self._group.members if self._group is not None else {}
        return now.cnode is not None and now.cnode.name in members

    def _put(self, index: int, barrier: Barrier) -> None:
        self.barriers[index] = self.barriers[index] | barrier if index in self.barriers else barrier

    def _end(self, index: int) -> None:
        """The barrier after a group, so that the backward shares no work with it: XLA would
        merge, for example, the products that attention and its backward both compute."""
        if self._group is None:
            return
        members = self._group.members.values()
        names = dict.fromkeys(self._group.written if len(members) >= SMALL_GROUP else ())
        for c in members:
            for other in self._backward_of.get(c.name, ()):
                names.update(dict.fromkeys(_twins(self.graph, c, other)))
                names.update(dict.fromkeys(self._shared.operands(c.name, other.name)))
        again = tuple(n for n in names if self.history.is_read(n, index))
        if again:
            self._put(index, Barrier(again))
            self._open(index)


def _twins(graph: Graph, c: CNode, other: CNode) -> tuple[str, ...]:
    """The operands that a computation and its backward share, if more than one."""
    own = set(c.call_at(2).refs())
    shared = [
        graph.storage[name]
        for name in other.call.refs()
        if name in own and graph.anode[graph.storage[name]].kind != "param"
    ]
    return tuple(dict.fromkeys(shared)) if len(shared) > 1 else ()


def _backward_of(graph: Graph) -> dict[str, list[CNode]]:
    backward: dict[str, list[CNode]] = {}
    for c in graph.in_phase("bwd"):
        for name in c.of:
            backward.setdefault(name, []).append(c)
    return backward


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
    members: dict[str, CNode] = field(default_factory=dict)
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
        self.members[c.name] = c
        self.key |= c.token is not None
        reads = self.graph.reads(c, now.execution)
        outside = [name for name in reads if name not in self.written]
        held = [name for name in outside if self.graph.anode[name].kind in CALLER_KINDS]
        self.sources.update(dict.fromkeys(name for name in outside if name not in held))
        told_apart = c.token is not None or any(
            name in self.fresh or name in self.sources for name in reads
        )
        same = any(name in self.written and name not in self.fresh for name in reads)
        if held and (same or not told_apart):
            # It reads constants and what the caller holds, best inputs: they are small.
            inputs = [name for name in held if self.graph.anode[name].kind != "param"]
            self.sources.update(dict.fromkeys(held if same or not inputs else inputs))
            told_apart = True
        self._wrote(now.made, fresh=told_apart)

    def _wrote(self, names: Iterable[str], *, fresh: bool) -> None:
        self.written.update(dict.fromkeys(names))
        if fresh:
            self.fresh.update(names)

    def barrier(self) -> Barrier:
        anchors = tuple(name for name in self.latest if name not in self.sources)
        return Barrier(tuple(self.sources), tuple(self.hosts), anchors, self.key)
