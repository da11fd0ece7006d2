"""`reorder`: plans after moving computations that hold memory in the fullest moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar

from ...ir.program import Budget
from ...ir.semantics.simulate import simulate
from ..bounds.reordering import Reordering
from ..contract import Feasible, Infeasible, Optimal, Planner, PlanResult, TimedOut, makes_copies
from ..results import Task, peak_of
from ..search import SearchPlanner
from ..solvers import MilpSolver
from .dtr import Dtr

_FOR_ORDER = 0.35
"""The share of the time limit that looking for an order may take."""


@dataclass(frozen=True)
class Reorder(SearchPlanner):
    """Ours. Other planners run each computation for the first time in the order of capture.
    This one moves some to where less is alive, such as the gradient of a tied embedding that
    would wait through the whole backward, and lets the planner `of` plan the step in that
    order, and as captured. The faster plan is the answer.
    """

    name: ClassVar[str] = "reorder"
    applicability: ClassVar[str] = "what the planner it runs accepts"
    source: ClassVar[str] = "ours: local search over the bounds of single moments"
    of: Planner = field(default_factory=Dtr)

    @classmethod
    def check_options(cls, of: Planner) -> Iterator[tuple[str, str]]:
        if isinstance(of, Reorder):
            yield "of", "cannot be reorder itself"

    @property
    def copies(self) -> bool:
        """True if its schedules may copy to the host, as the other planner's may."""
        return makes_copies(self.of)

    def search(self, task: Task) -> PlanResult:
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        with MilpSolver() as solver:
            search = Reordering(task.instance, task.limit_bytes, solver)
            order = search.run(monotonic() + _FOR_ORDER * task.left_s)
        task.progress(f"{self.name}: {search.moved} computations moved")
        others = [task.program] if order is None else [search.program(order), task.program]
        results: list[PlanResult] = []
        for k, other in enumerate(others):
            left = task.left_s / (len(others) - k)
            tell = task.progress
            results.append(self.of.plan(other, task.budget, time_limit_s=left, progress=tell))
        return self._best(task, results)

    def _best(self, task: Task, results: list[PlanResult]) -> PlanResult:
        plans = [r for r in results if isinstance(r, Optimal | Feasible | TimedOut) and r.schedule]
        if not plans:
            # Of refusals, the one that comes nearest to the budget.
            return min(results, key=_least_bytes)
        best = min(plans, key=lambda r: r.time_ns)
        assert best.schedule is not None
        trace = simulate(task.program, best.schedule)
        assert peak_of(trace, task.instance.kind) <= task.limit_bytes
        schedule = replace(best.schedule, planner=task.planner)
        # Bounds of the planner `of` hold for one order only.
        base_ns = task.instance.base_time_ns
        if trace.time_ns <= base_ns:
            return Optimal(schedule, trace.time_ns, base_ns)
        return Feasible(schedule, trace.time_ns, base_ns)


def _least_bytes(result: PlanResult) -> int:
    match result:
        case Infeasible(min_budget=Budget(bytes=least)):
            return least
        case TimedOut():
            return 1 << 61
        case _:
            return 1 << 62
