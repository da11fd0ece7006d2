"""The step of an optimizer beside the forward and the backward: other programs, and schedules
between them.

A program with updates has a cNode of phase `opt` for each parameter, behind all others. Planners of
recomputation are given `for_planners(program)`, where each update is a computation of the backward
that ends a gradient. `with_updates` puts the updates themselves into their schedule, each as soon
as its gradient is there and nobody reads the old parameter any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..expr import Const
from ..graph import ANode, Call, CNode, Graph, Ref
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
    params = {p.name for p in program.binding.params}
    of: dict[str, str] = {}
    for c in updates:
        trained = (old for old, _ in c.takes_over if old in params)
        of |= zip(trained, c.operands[len(c.results) :], strict=True)
    anodes = tuple(
        replace(a, kind="param_grad") if a.name in gradients and a.kind == "grad" else a
        for a in graph.anodes
        if a.name not in made and a.kind != "opt_state"
    )
    cnodes = tuple(c for c in graph.cnodes if not c.is_update)
    bound = tuple(replace(p, grad=of.get(p.name, p.grad)) for p in program.binding.params)
    binding = replace(program.binding, params=bound)
    graph = replace(graph, anodes=anodes, cnodes=cnodes)
    return replace(program, graph=graph, binding=binding, schedules=(), proven=())


def for_planners(program: Program) -> Program:
    """The forward and the backward, with a cNode in the place of each update that reads its
    gradient and gives nothing (an output of no bytes), as early as the order of capture has it. The
    states of the optimizer are left out."""
    graph = program.graph
    place = {c.name: index for index, c in enumerate(graph.cnodes)}
    made = {name for c in graph.cnodes if c.is_update for name in c.results}
    stands: dict[int, list[CNode]] = {}
    ends: list[ANode] = []
    for c in (c for c in graph.cnodes if c.is_update):
        others = [o for name in graph.reads(c) for o in graph.readers[name] if not o.is_update]
        others += [graph.writer[name] for name in gradients_of(graph, c)]
        last = max(others, key=lambda o: place[o.name])
        ends.append(ANode(f"{c.name}.end", "output", "u8", (Const(0),), Const(0)))
        call = Call("remat.update", tuple(Ref(name) for name in gradients_of(graph, c)))
        end = CNode(c.name, "bwd", (ends[-1].name,), call, of=last.of)
        end = replace(end, workspace=c.workspace, time_ns=c.time_ns)
        stands.setdefault(place[last.name], []).append(end)
    cnodes = tuple(
        node
        for index, c in enumerate(graph.cnodes)
        if not c.is_update
        for node in (c, *stands.get(index, ()))
    )
    anodes = tuple(a for a in graph.anodes if a.name not in made and a.kind != "opt_state")
    graph = replace(graph, anodes=(*anodes, *ends), cnodes=cnodes)
    return replace(program, graph=graph, schedules=(), proven=())


def with_updates(program: Program, schedule: Schedule) -> Schedule:
    """A schedule of `program` from one of `for_planners(program)`: everything on the device."""
    graph = program.graph
    updates = {c.name for c in graph.cnodes if c.is_update}
    gradients = {name for c in updates for name in gradients_of(graph, graph.cnode[c])}
    bare = [
        step
        for step in schedule.steps
        if not (isinstance(step, Compute) and step.cnode in updates)
        and not (isinstance(step, Free) and step.anode in gradients)
    ]
    after: dict[int, list[Step]] = {}
    for name, index in update_places(graph, bare).items():
        steps = after.setdefault(index, [])
        steps.append(Compute(name))
        steps += [Free(gradient) for gradient in gradients_of(graph, graph.cnode[name])]
    done = [made for i, step in enumerate(bare) for made in (step, *after.get(i, ()))]
    return replace(schedule, steps=tuple(done))


def update_places(graph: Graph, steps: Sequence[Step]) -> dict[str, int]:
    """The index of the step behind which each update can run: the last one that reads what it
    ends, or makes its gradient, and what is freed behind that."""
    last: dict[str, int] = {}
    runs: dict[str, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            n = runs[c.name] = runs.get(c.name, 0) + 1
            for name in (*graph.reads(c, n), *c.results_at(n)):
                last[name] = index
    behind = [*range(len(steps))]
    for index in reversed(range(len(steps) - 1)):
        if isinstance(steps[index + 1], Free):
            behind[index] = behind[index + 1]
    updates = (c for c in graph.cnodes if c.is_update)
    return {c.name: behind[max(last.get(name, 0) for name in graph.reads(c))] for c in updates}
