"""Where barriers stand: at the head of each group of computations that run again.

XLA merges equal computations. What runs again is told apart from its first execution by
a barrier on what it reads, and is kept from running too early because the latest
cotangent goes through the same barrier. One barrier per group: a barrier on every
operator would keep XLA from fusing them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ...ir.graph import CALLER_KINDS, CNode, Graph
from ...ir.schedule import Compute, Free, Offload, Prefetch, Schedule, Step

__all__ = ["Barrier", "Numbered", "barriers", "numbered"]


class Numbered(NamedTuple):
    """A step with its index, and for a computation the cNode and which execution it is."""

    index: int
    step: Step
    cnode: CNode | None
    execution: int


def numbered(graph: Graph, steps: tuple[Step, ...]) -> Iterator[Numbered]:
    runs: Counter[str] = Counter()
    for index, step in enumerate(steps):
        if isinstance(step, Compute):
            runs[step.cnode] += 1
            yield Numbered(index, step, graph.cnode[step.cnode], runs[step.cnode])
        else:
            yield Numbered(index, step, None, 0)


@dataclass(frozen=True)
class Barrier:
    """What goes through a barrier: aNodes on the device, host copies, the random key.

    `anchors` are values that the group does not read: the latest cotangent, which orders
    the group after what made it.
    """

    sources: tuple[str, ...]
    hosts: tuple[str, ...]
    anchors: tuple[str, ...]
    key: bool


def barriers(graph: Graph, schedule: Schedule) -> dict[int, Barrier]:
    """The barrier before each step that begins a group.

    A group is a run of computations that run again, and of prefetches, which no first
    execution interrupts and in which no computation occurs twice.
    """
    history = _History(graph, schedule)
    found: dict[int, Barrier] = {}
    group: _Group | None = None
    start = 0
    for now in numbered(graph, schedule.steps):
        if isinstance(now.step, Prefetch) or now.execution > 1:
            if group is None or (now.cnode is not None and now.cnode.name in group.members):
                group = _Group(graph, history.latest(start, now.index))
                start = now.index
            group.add(now)
            found[start] = group.barrier()
        elif now.cnode is not None:
            group = None
    return {i: b for i, b in found.items() if b.sources or b.hosts or b.key}


@dataclass
class _Group:
    graph: Graph
    latest: tuple[str, ...]
    members: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)
    sources: dict[str, None] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    key: bool = False

    def add(self, now: Numbered) -> None:
        if isinstance(now.step, Prefetch):
            self.hosts[now.step.anode] = None
            self.written.add(now.step.anode)
            self.fresh.add(now.step.anode)
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
        self.written.update(c.results_at(now.execution))
        if told_apart:
            self.fresh.update(c.results_at(now.execution))

    def barrier(self) -> Barrier:
        anchors = tuple(name for name in self.latest if name not in self.sources)
        return Barrier(tuple(self.sources), tuple(self.hosts), anchors, self.key)


class _History:
    """What is written, read and freed at which step."""

    def __init__(self, graph: Graph, schedule: Schedule):
        self._graph = graph
        self._writes: list[tuple[int, str]] = []
        self._events: dict[str, list[tuple[int, str]]] = {}
        for now in numbered(graph, schedule.steps):
            self._note(now)
        for name, events in self._events.items():
            if events[-1][1] != "free":
                self._event(name, len(schedule.steps), "read")

    def _note(self, now: Numbered) -> None:
        match now.step:
            case Free(name):
                self._event(name, now.index, "free")
            case Offload(name):
                self._event(name, now.index, "read")
            case Prefetch(name):
                self._event(name, now.index, "write")
            case Compute():
                assert now.cnode is not None
                for name in self._graph.reads(now.cnode, now.execution):
                    self._event(name, now.index, "read")
                for name in now.cnode.results_at(now.execution):
                    self._event(name, now.index, "write")
                    self._writes.append((now.index, name))

    def _event(self, name: str, index: int, what: str) -> None:
        self._events.setdefault(name, []).append((index, what))

    def latest(self, since: int, index: int) -> tuple[str, ...]:
        """What the steps from `since` to before `index` wrote and something from there on
        reads, results of the whole step included; where there is nothing, the last such
        value that was written before."""
        first, end = (bisect_left(self._writes, (i, "")) for i in (since, index))
        names = dict.fromkeys(name for _, name in reversed(self._writes[first:end]))
        found = tuple(name for name in names if self._is_read(name, index))
        if found:
            return found
        earlier = (name for _, name in reversed(self._writes[:first]))
        return tuple(islice((name for name in earlier if self._is_read(name, index)), 1))

    def _is_read(self, name: str, index: int) -> bool:
        events = self._events[name]
        following = bisect_left(events, (index, ""))
        return following < len(events) and events[following][1] == "read"
