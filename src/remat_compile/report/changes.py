"""Differences between two plans: values kept, recomputed, moved; and their effect on peak and
time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..ir.program import Program
from .subject import Subject

What = Literal["kept", "recomputed", "moved"]


@dataclass(frozen=True, slots=True)
class NameChange:
    """One name that the plans treat differently.

    `kept`: 1 where the tensor is alive on the device when the loss runs, else 0. `recomputed`:
    how often the computation runs beyond the first time. `moved`: copies of the tensor to the
    host. `bytes` is its size (all results, of a computation), `ns` the time of one later run.
    """

    what: What
    name: str
    before: int
    after: int
    bytes: int
    ns: int
    place: str


@dataclass(frozen=True)
class Differences:
    """`same` is about everything; `same_graph` and `same_costs` (bytes of workspaces, times,
    target) about the graph. Where graphs differ, what only one of them has is named, and changes
    are told of what they share."""

    before: Subject
    after: Subject
    same: bool
    same_graph: bool
    same_costs: bool
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    changes: tuple[NameChange, ...]


def differences(before: Subject, after: Subject) -> Differences:
    """From one valid plan to another. FBError where one is not valid."""
    one, two = before.program, after.program
    same_graph = _without_costs(one) == _without_costs(two)
    same_costs = one.target == two.target and _costs(one) == _costs(two)
    names_one, names_two = (
        {c.name for c in p.graph.cnodes} | {f"%{a.name}" for a in p.graph.anodes}
        for p in (one, two)
    )
    return Differences(
        before,
        after,
        same_graph and same_costs and before.schedule.steps == after.schedule.steps,
        same_graph,
        same_costs,
        tuple(sorted(names_one - names_two)),
        tuple(sorted(names_two - names_one)),
        tuple(sorted(_changes(before, after), key=_rank)),
    )


def _without_costs(program: Program) -> object:
    """The parts that must be equal for two graphs to be one; a model measured again is the same
    graph."""
    graph = program.graph
    computations = tuple(
        (c.name, c.phase, c.writes, repr(c.call), repr(c.call_at(2)), c.token, c.of)
        for c in graph.cnodes
    )
    views = tuple((v.name, v.base, repr(v.call), v.index) for v in graph.views)
    return program.symbols, program.binding, graph.anodes, views, computations


def _costs(program: Program) -> object:
    return [
        (c.workspace, c.workspace_at(2), c.time_ns_at(1), c.time_ns_at(2))
        for c in program.graph.cnodes
    ]


def _rank(change: NameChange) -> tuple[What, int, str]:
    weight = change.ns * abs(change.after - change.before)
    return change.what, -(weight if change.what == "recomputed" else change.bytes), change.name


def _changes(before: Subject, after: Subject) -> Iterator[NameChange]:
    one, two = before.program.graph, after.program.graph
    sizes = after.trace._sizes.anode
    kept_before, kept_after = _alive_at_loss(before), _alive_at_loss(after)
    moved_before, moved_after = _moved(before), _moved(after)
    for name in (a.name for a in one.anodes if a.name in two.anode):
        writer = two.writer.get(name)
        place = str(writer.loc or "") if writer else ""
        ns = writer.time_ns_at(2) if writer else 0
        was, now = int(name in kept_before), int(name in kept_after)
        if was != now:
            yield NameChange("kept", f"%{name}", was, now, sizes[name], ns, place)
        if moved_before[name] != moved_after[name]:
            counts = moved_before[name], moved_after[name]
            yield NameChange("moved", f"%{name}", *counts, sizes[name], ns, place)
    for c in (two.cnode[c.name] for c in one.cnodes if c.name in two.cnode):
        was, now = _again(before, c.name), _again(after, c.name)
        if was != now:
            size = sum(sizes[name] for name in c.results)
            yield NameChange(
                "recomputed", c.name, was, now, size, c.time_ns_at(2), str(c.loc or "")
            )


def _alive_at_loss(subject: Subject) -> frozenset[str]:
    """Tensors that the step makes and holds on the device when the loss runs."""
    loss = subject.trace.loss_step
    return frozenset(life.anode for life in subject.timeline.lives if life.born < loss < life.died)


def _moved(subject: Subject) -> Counter[str]:
    return Counter(copy.anode for copy in subject.trace.copies if copy.direction == "d2h")


def _again(subject: Subject, cnode: str) -> int:
    return max(0, subject.trace.executions.get(cnode, 0) - 1)
