"""A planner of tests: parameters and states at home on the host, updated on either side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar

from remat_compile.ir.graph import CNode, Graph
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.rewrites.updates import gradients_of, with_updates, without_updates
from remat_compile.ir.schedule import (
    Compute,
    Free,
    Home,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners.baselines.store_all import StoreAll
from remat_compile.planners.contract import Feasible, Optimal, PlanResult, Progress


@dataclass(frozen=True)
class HomedUpdates:
    """Each update in turn is on one of the `sides`: all on the `device`; at `home` on the host, and
    brought for each use; or updated on the `host`. Nothing is made twice."""

    name: ClassVar[str] = "homed-updates"
    applicability: ClassVar[str] = "tests"
    source: ClassVar[str] = "tests"
    copies: ClassVar[bool] = True
    homes: ClassVar[bool] = True
    updates: ClassVar[bool] = True
    sides: tuple[str, ...] = ("home",)

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        """As `Planner.plan`."""
        base = StoreAll().plan(without_updates(program), None)
        assert isinstance(base, Feasible | Optimal)
        steps = with_updates(program, base.schedule).steps
        updates = (c for c in program.graph.cnodes if c.is_update)
        side = {c.name: side for c, side in zip(updates, cycle(self.sides), strict=False)}
        plan = Schedule("plan", self.name, tuple(_placed(program.graph, steps, side)))
        return Feasible(plan, simulate(program, plan).time_ns, None)


def _placed(graph: Graph, steps: tuple[Step, ...], side: dict[str, str]) -> Iterator[Step]:
    away = {name: old for name, old in side.items() if old != "device"}
    homes = [old for name in away for old, _ in graph.cnode[name].takes_over]
    yield from map(Home, homes)
    on_host = [graph.cnode[name] for name in away if away[name] == "host"]
    gradients = {g for c in on_host for g in gradients_of(graph, c)}
    last = _last_uses(graph, steps, {*homes}, {c.name for c in on_host})
    here = set[str]()
    for at, step in enumerate(steps):
        c = graph.cnode[step.cnode] if isinstance(step, Compute) else None
        if c in on_host:
            yield from _on_host(graph, c)
            continue
        if isinstance(step, Free) and step.anode in gradients:
            continue
        brought = [] if c is None else [r for r in graph.reads(c) if r in {*homes} - here]
        for name in brought:
            yield from (Prefetch(name), Wait(name))
        here.update(brought)
        yield step
        if c is not None and c.name in away:
            for old, new in c.takes_over:
                yield from (HostFree(old), Offload(new), Wait(new), Free(new))
                here.discard(old)
        for name in sorted(here):
            if at in last[name]:
                yield Free(name)
                here.discard(name)
    for c in on_host:
        yield from map(Wait, c.results)
        for gradient in gradients_of(graph, c):
            yield from (Wait(gradient), HostFree(gradient))


def _on_host(graph: Graph, c: CNode) -> Iterator[Step]:
    for gradient in gradients_of(graph, c):
        yield from (Offload(gradient), Wait(gradient), Free(gradient))
    yield Compute(c.name, on_host=True)


def _last_uses(
    graph: Graph, steps: tuple[Step, ...], homes: set[str], on_host: set[str]
) -> dict[str, set[int]]:
    """The steps behind which each is freed: its last use in the forward, and in the backward."""
    last: dict[str, dict[bool, int]] = defaultdict(dict)
    behind = False
    for at, step in enumerate(steps):
        if isinstance(step, Compute) and step.cnode not in on_host:
            c = graph.cnode[step.cnode]
            behind |= c.is_loss
            for name in homes.intersection(graph.reads(c)):
                last[name][behind] = at
    return {name: set(last[name].values()) for name in homes}
