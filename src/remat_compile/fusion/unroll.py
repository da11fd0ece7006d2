"""Gives every recomputation in the backward a cNode and results of its own.

An aNode has one writer. So that a value may be made by one kernel in the forward and by another
in the backward, what the second makes gets a name of its own, and those that read it there read
that name:

    F2 …; free %t; L; …; F2; B5 (reads %t); free %t
        ->   F2 …; free %t; L; …; F2.2 (writes %t.2); B5 (reads %t.2); free %t.2

The steps, their bytes and their times stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..ir.analysis.regions import renamed, renamed_call
from ..ir.graph import ANode, CNode, Graph, View
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from .region import views_to
from .walk import is_plain


@dataclass(frozen=True)
class Unrolled:
    """`origin` has, for each new aNode and view, the one that it is another instance of."""

    program: Program
    schedule: Schedule
    origin: dict[str, str]


def unrolled(program: Program, schedule: Schedule) -> Unrolled:
    """The same step with recomputations of plain forward cNodes after the loss named apart.

    Those stay as they are whose results are read by what runs more than once under one name
    (random operators, replay forms) or moved by copies.
    """
    stays: set[str] = set()
    while True:
        pass_ = _Pass(program, schedule, stays)
        steps = tuple(step for index in range(len(schedule.steps)) for step in pass_.step(index))
        if not pass_.conflicts:
            return pass_.result(steps)
        stays |= pass_.conflicts


@dataclass
class _Pass:
    """`now` has the instance that a name stands for where the steps are, if not the first."""

    program: Program
    schedule: Schedule
    stays: set[str]
    conflicts: set[str] = field(default_factory=set)
    now: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    anodes: list[ANode] = field(default_factory=list)
    views: dict[tuple[str, str], View] = field(default_factory=dict)
    again: list[CNode] = field(default_factory=list)
    changed: dict[str, CNode] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    executions: Counter[str] = field(default_factory=Counter)
    is_after_loss: bool = False

    def __post_init__(self) -> None:
        steps = self.schedule.steps
        self.runs = Counter(step.cnode for step in steps if isinstance(step, Compute))
        inside = (inner for c in self.graph.cnodes for inner in c.call.region)
        self.taken = {*self.graph.storage, *self.graph.cnode}
        self.taken |= {name for inner in inside for name in inner.writes if name is not None}
        self.moved = {s.anode for s in steps if not isinstance(s, (Compute, Free))}

    @property
    def graph(self) -> Graph:
        return self.program.graph

    def step(self, index: int) -> Iterator[Step]:
        """Return the stand-in for a step."""
        step = self.schedule.steps[index]
        if not isinstance(step, Compute):
            yield self._storage_step(step)
            return
        c = self.graph.cnode[step.cnode]
        self.executions[c.name] += 1
        n = self.executions[c.name]
        self.is_after_loss |= c.is_loss
        if n > 1 and self._may_unroll(c):
            yield from self._again(c, n, step.nosave)
            return
        self._read_now(c, n)
        kept = {r for r in c.results_at(n) if not (step.nosave and self._is_phantom(r))}
        self.live |= kept
        for name in c.results_at(n):
            self.now.pop(name, None)
        yield step

    def _storage_step(self, step: Step) -> Step:
        assert not isinstance(step, Compute)
        if not isinstance(step, Free):
            return step
        self.live.discard(step.anode)
        return replace(step, anode=self.now.pop(step.anode, step.anode))

    def _may_unroll(self, c: CNode) -> bool:
        return (
            self.is_after_loss
            and c.phase == "fwd"
            and c.name not in self.stays
            and is_plain(c, self.graph)
            and all(self.graph.anode[r].kind in ("act", "phantom") for r in c.results)
            and self.moved.isdisjoint(c.results)
        )

    def _is_phantom(self, name: str) -> bool:
        return self.graph.anode[name].kind == "phantom"

    def _again(self, c: CNode, n: int, nosave: bool) -> Iterator[Step]:
        """Its own cNode, and frees of what is there already or not saved."""
        instances = {name: self._fresh(name, n) for name in c.results}
        names = {name: self._name_now(name) for name in c.call.refs()} | instances
        own = replace(renamed(c, names), name=self._fresh(c.name, n), phase="bwd", of=(c.name,))
        self.again.append(replace(own, span=None))
        yield Compute(own.name)
        for name, new in instances.items():
            self.origin[new] = name
            self.anodes.append(replace(self.graph.anode[name], name=new, kind="grad", span=None))
            is_dropped = nosave and self._is_phantom(name)
            if name in self.live or is_dropped:
                yield Free(new)
                if name in self.live and is_dropped:
                    yield self._storage_step(Free(name))
            else:
                self.now[name] = new
                self.live.add(name)

    def _read_now(self, c: CNode, n: int) -> None:
        """Lets a cNode that keeps its name read the instances that are there now."""
        refs = {*c.call.refs(), *c.call_at(n).refs()}
        names = {name: self._name_now(name) for name in refs}
        meant = {name: new for name, new in names.items() if name != new}
        if not meant:
            return
        if self.runs[c.name] > 1 or c.is_accumulate or c.replay is not None:
            bases = {self.graph.storage[name] for name in meant}
            self.conflicts |= {self.graph.writer[base].name for base in bases}
            return
        self.changed[c.name] = renamed(c, meant)

    def _name_now(self, name: str) -> str:
        """Return the name of the instance that is there; a view of it is made where none is yet."""
        base = self.graph.storage[name]
        if base not in self.now:
            return name
        own = self.now[base]
        for view in views_to(name, self.graph):
            if (view.name, own) not in self.views:
                self._view_of(view, own)
        return self.views[name, own].name if name != base else own

    def _view_of(self, view: View, base: str) -> None:
        """The same view of another instance, of which what it reads is there."""
        new = self._fresh(view.name, sum(known == view.name for known, _ in self.views) + 2)
        views = {r: self.views[r, base].name for r in view.call.refs() if r in self.graph.view}
        call = renamed_call(view.call, {view.base: base} | views)
        self.views[view.name, base] = replace(view, name=new, base=base, call=call, span=None)
        self.origin[new] = view.name

    def _fresh(self, name: str, n: int) -> str:
        new = f"{name}.{n}"
        while new in self.taken:
            new += "_"
        self.taken.add(new)
        return new

    def result(self, steps: tuple[Step, ...]) -> Unrolled:
        graph = self.graph
        cnodes: list[CNode] = []
        for c in graph.cnodes:
            cnodes.append(self.changed.get(c.name, c))
            if c.is_loss:
                cnodes += self.again
        whole = replace(
            graph,
            anodes=(*graph.anodes, *self.anodes),
            views=(*graph.views, *self.views.values()),
            cnodes=tuple(cnodes),
        )
        program = replace(self.program, graph=whole, schedules=(), proven=())
        return Unrolled(program, replace(self.schedule, steps=steps), self.origin)
