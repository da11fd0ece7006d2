"""The step of an optimizer beside the forward and the backward: two programs, and schedules between
them.

A program with updates has a cNode of phase `opt` for each parameter. Planners of recomputation
plan the program without them, in which gradients of parameters are kept to the end;
`with_updates` puts the updates into such a schedule, each as soon as its gradient is there and
nobody reads the old parameter any more, and frees the gradient.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph import CNode, Graph
from ..program import Program
from ..schedule import Compute, Free, Schedule, Step


def has_updates(program: Program) -> bool:
    """Return whether a step of an optimizer is part of the program."""
    return any(c.is_update for c in program.graph.cnodes)


def gradients_of(graph: Graph, c: CNode) -> tuple[str, ...]:
    """The storages that an update reads and does not take over."""
    old = dict(c.takes_over)
    return tuple(name for name in graph.reads(c) if name not in old)


def without_updates(program: Program) -> Program:
    """The forward and the backward alone: gradients are kept for the caller, the states of the
    optimizer are not there."""
    graph = program.graph
    updates = [c for c in graph.cnodes if c.is_update]
    made = {name for c in updates for name in c.results}
    gradients = {name for c in updates for name in gradients_of(graph, c)}
    of = {graph.storage[c.call.refs()[0]]: c for c in updates}
    anodes = tuple(
        replace(a, kind="param_grad") if a.name in gradients and a.kind == "grad" else a
        for a in graph.anodes
        if a.name not in made and a.kind != "opt_state"
    )
    cnodes = tuple(c for c in graph.cnodes if not c.is_update)
    params = tuple(
        replace(p, grad=_gradient(of[p.name])) if p.name in of else p
        for p in program.binding.params
    )
    binding = replace(program.binding, params=params)
    graph = replace(graph, anodes=anodes, cnodes=cnodes)
    return replace(program, graph=graph, binding=binding, schedules=(), proven=())


def _gradient(c: CNode) -> str:
    """The name under which an update reads its gradient."""
    return c.call.refs()[len(c.results)]


def with_updates(program: Program, schedule: Schedule) -> Schedule:
    """A schedule of `program` from one of `without_updates(program)`: everything on the device."""
    graph = program.graph
    after: dict[int, list[Step]] = {}
    for c, index in update_places(program, schedule).items():
        steps = after.setdefault(index, [])
        steps.append(Compute(c))
        steps += [Free(name) for name in gradients_of(graph, graph.cnode[c])]
    steps = [made for i, step in enumerate(schedule.steps) for made in (step, *after.get(i, ()))]
    return replace(schedule, steps=tuple(steps))


def update_places(program: Program, schedule: Schedule) -> dict[str, int]:
    """The index of the step behind which each update can run: the last one that reads what it
    ends, or makes its gradient."""
    graph = program.graph
    last: dict[str, int] = {}
    runs: dict[str, int] = {}
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            n = runs[c.name] = runs.get(c.name, 0) + 1
            for name in (*graph.reads(c, n), *c.results_at(n)):
                last[name] = index
    updates = (c for c in graph.cnodes if c.is_update)
    return {c.name: max(last.get(name, 0) for name in graph.reads(c)) for c in updates}
