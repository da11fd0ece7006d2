"""The steps of a schedule with what each of them reads, writes and frees."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ....ir.graph import CALLER_KINDS, CNode, Graph
from ....ir.schedule import Compute, ElementaryStep, Free, Offload, Prefetch, Schedule, Step


@dataclass(frozen=True, slots=True)
class Numbered:
    """A step with its index, and for a computation the cNode, which execution it is and the
    aNodes that it makes: those that are alive already are dropped."""

    index: int
    step: Compute | ElementaryStep
    cnode: CNode | None
    execution: int
    made: tuple[str, ...] = ()


def numbered(graph: Graph, steps: tuple[Step, ...]) -> Iterator[Numbered]:
    runs: Counter[str] = Counter()
    live = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    for index, step in enumerate(steps):
        if isinstance(step, Compute):
            runs[step.cnode] += 1
            c, n = graph.cnode[step.cnode], runs[step.cnode]
            if c.is_accumulate:
                live.discard(graph.reads(c)[0])
            results = c.results_at(n)
            yield Numbered(index, step, c, n, tuple(name for name in results if name not in live))
            live.update(results)
            if step.nosave:
                live -= {name for name in results if graph.anode[name].kind == "phantom"}
            continue
        (part,) = step.parts()  # the driver hands elementary schedules to this backend
        if isinstance(part, Free):
            live.discard(part.anode)
        elif isinstance(part, Prefetch):
            live.add(part.anode)
        yield Numbered(index, part, None, 0)


class AccessHistory:
    """The steps at which values are written, read and freed. The end reads what is never freed."""

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
            case Compute() if now.cnode is not None:
                for name in self._graph.reads(now.cnode, now.execution):
                    self._event(name, now.index, "read")
                for name in now.cnode.results_at(now.execution):
                    self._event(name, now.index, "write")
                    self._writes.append((now.index, name))

    def _event(self, name: str, index: int, what: str) -> None:
        self._events.setdefault(name, []).append((index, what))

    def is_read(self, name: str, index: int) -> bool:
        """True if the value of `name` before a step is read by it or a later one."""
        events = self._events[name]
        following = bisect_left(events, (index, ""))
        return following < len(events) and events[following][1] == "read"

    def latest(self, since: int, index: int) -> tuple[str, ...]:
        """The values written by the steps from `since` to before `index` and read afterwards,
        results of the whole step included; where there is nothing, the last such
        value that was written before."""
        first, end = (bisect_left(self._writes, (i, "")) for i in (since, index))
        names = dict.fromkeys(name for _, name in reversed(self._writes[first:end]))
        read_later = tuple(name for name in names if self.is_read(name, index))
        if read_later:
            return read_later
        earlier = (name for _, name in reversed(self._writes[:first]))
        return tuple(islice((name for name in earlier if self.is_read(name, index)), 1))
