"""`rk-checkmate`: an integer program on the whole graph."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from ..ir.program import Budget, Program
from ._compact_solve import CompactAnswer, solve_compact
from ._events import useful_pairs
from ._options import checked
from ._results import Task
from .contract import Feasible, Optimal, PlanResult, Progress, TimedOut
from .registry import format_planner
from .solvers import MilpSolver

__all__ = ["RkCheckmate"]


@dataclass(frozen=True)
class RkCheckmate:
    """Zhao 2024, section 2.4, in a compact form.

    Keeps the captured order of first executions; between two of them each forward cNode
    may run again at most once. `backward` lets backward cNodes run again too (none: only
    where there is no plan without). `saved_bytes` bounds what is alive when the loss
    starts, counted as the budget is.
    """

    name: ClassVar[str] = "rk-checkmate"
    backward: bool | None = None
    saved_bytes: int | None = None

    def __post_init__(self) -> None:
        checked(self)

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        deadline = monotonic() + time_limit_s
        task = Task.of(program, budget, format_planner(self))
        scopes = (False, True) if self.backward is None else (self.backward,)
        with MilpSolver() as solver:
            for backward in scopes:
                found = self._solve(task, backward, deadline, solver, progress)
                if found.status != "infeasible":
                    break
        return self._result(task, found)

    def _solve(
        self,
        task: Task,
        backward: bool,
        deadline: float,
        solver: MilpSolver,
        progress: Progress | None,
    ) -> CompactAnswer:
        instance = task.instance
        base = instance.base_time_ns or 1

        def tell(order: object, time_ns: int) -> None:
            if progress is not None:
                progress(f"rk-checkmate: {time_ns / base:.4f} of the time without budget")

        return solve_compact(
            instance,
            task.limit_bytes,
            saved_bytes=self.saved_bytes,
            time_limit_s=deadline - monotonic(),
            pairs=useful_pairs(instance, backward=backward),
            solver=solver,
            on_order=tell,
        )

    def _result(self, task: Task, found: CompactAnswer) -> PlanResult:
        match found.status, found.order:
            case "infeasible", _:
                return task.infeasible(None)
            case _, None:
                return TimedOut(None, 0, found.bound_ns)
            case "optimal", order:
                return Optimal(task.schedule(order), found.time_ns, found.bound_ns)
            case _, order:
                gap = found.time_ns / found.bound_ns - 1 if found.bound_ns else 0.0
                return Feasible(task.schedule(order), found.time_ns, found.bound_ns, gap)
