"""Packed values that a schedule can do without: each costs time, and not all are needed.

A planner takes a packed graph as it is. Afterwards values are kept whole again, those first that
cost most time for the bytes they save, as long as the schedule stays within its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...ir.codecs import Pair, pairs
from ...ir.diagnostics import FBError
from ...ir.expr import evaluate
from ...ir.graph import Graph
from ...ir.program import Program
from ...ir.rewrites.packs import erased
from ...ir.schedule import Compute, Free, Schedule, Step
from ...ir.semantics.simulate import Trace, simulate

Fits = Callable[[Trace], bool]


def without_unneeded(
    program: Program, schedule: Schedule, fits: Fits, whole: Graph | None = None
) -> tuple[Program, Schedule] | None:
    """The program and schedule with fewer packed values, faster and such that it `fits`; None where
    all are needed. Schedules that copy packed values are left as they are. Costs of what
    is not packed are those of `whole`. One simulation for each source."""
    best, time_ns = None, simulate(program, schedule).time_ns
    for source in _by_price(program, schedule):
        fewer = erased(program, {source}, whole)
        steps = _with_whole(program, fewer, schedule, source)
        if steps is None:
            continue
        made = Schedule(schedule.name, schedule.planner, steps)
        try:
            trace = simulate(fewer, made)
        except FBError:  # the source is made again in between, and left out with `nosave`
            continue
        if fits(trace) and trace.time_ns < time_ns:
            best, time_ns = (fewer, made), trace.time_ns
            program, schedule = best
    return best


def _by_price(program: Program, schedule: Schedule) -> list[str]:
    """Sources, those first that cost most time for each byte that is saved."""
    graph = program.graph
    runs: dict[str, int] = {}
    for step in schedule.steps:
        if isinstance(step, Compute):
            runs[step.cnode] = runs.get(step.cnode, 0) + 1
    time_ns: dict[str, int] = {}
    size: dict[str, int] = {}
    for pair in pairs(graph):
        makers = (graph.writer[name] for name in {*_own(pair)} if name in graph.anode)
        spent = sum(runs.get(c.name, 0) * (c.time_ns or 0) for c in makers)
        time_ns[pair.source] = time_ns.get(pair.source, 0) + spent
        size[pair.source] = evaluate(graph.anode[pair.source].size, program.sample)
    return sorted(time_ns, key=lambda name: (-time_ns[name] / max(1, size[name]), name))


def _own(pair: Pair) -> Iterator[str]:
    yield pair.packed
    yield pair.stand_in


def _with_whole(
    program: Program, fewer: Program, schedule: Schedule, source: str
) -> tuple[Step, ...] | None:
    """The steps in which the source lives from when it is made to when it is read last; None where
    it, or what is packed of it, is copied."""
    gone = {name for p in pairs(program.graph) if p.source == source for name in _own(p)}
    makers = {c.name for c in program.graph.cnodes if not gone.isdisjoint(c.results)}
    steps: list[Step] = []
    last = 0
    runs: dict[str, int] = {}
    for step in schedule.steps:
        if isinstance(step, Compute):
            if step.cnode in makers:
                continue
            runs[step.cnode] = runs.get(step.cnode, 0) + 1
            c = fewer.graph.cnode[step.cnode]
            if source in (*fewer.graph.reads(c, runs[c.name]), *c.results):
                last = len(steps) + 1
        elif step.anode in gone or step.anode == source:
            if not isinstance(step, Free):
                return None
            continue
        steps.append(step)
    steps.insert(last, Free(source))
    return tuple(steps)
