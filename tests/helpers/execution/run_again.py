"""A planner for the tests: runs a share of the forward again, whatever it costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from remat_compile.ir.analysis.order import frees_after_last_use
from remat_compile.ir.graph import CNode, Graph
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners.contract import Feasible, PlanResult


@dataclass(frozen=True)
class RunAgain:
    """Drops what a `share` of the forward computations write, drawn with `seed`, and runs
    each again right before the first backward computation that needs it. No budget."""

    share: float = 1.0
    seed: int = 0
    name: ClassVar[str] = "run-again"

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Callable[[str], None] | None = None,
    ) -> PlanResult:
        assert budget is None
        graph = program.graph
        order = _order(graph, self._dropped(graph))
        steps = frees_after_last_use(graph, order)
        schedule = Schedule("run_again", self.name, steps)
        return Feasible(schedule, simulate(program, schedule).time_ns, None)

    def _dropped(self, graph: Graph) -> set[str]:
        draw = random.Random(self.seed)
        return {
            c.name
            for c in graph.in_phase("fwd")
            if draw.random() < self.share
            and c.results_at(2)
            and all(graph.anode[r].kind != "output" for r in c.results)
        }


def _order(graph: Graph, dropped: set[str]) -> list[str]:
    order: list[str] = []
    done: set[str] = set()

    def need(c: CNode, execution: int) -> None:
        for name in graph.reads(c, execution):
            writer = graph.writer.get(name)
            if writer is not None and writer.name in dropped - done:
                done.add(writer.name)
                need(writer, 2)
                order.append(writer.name)

    for c in graph.cnodes:
        if c.phase == "bwd":
            need(c, 1)
        order.append(c.name)
    return order
