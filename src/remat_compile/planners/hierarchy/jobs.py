"""The work on one class of a hierarchy as a job: its options for a grid of budgets.

Every program has a bound on its work besides the clock, so that the same job gives the same
options on any machine, unless the time limit ends it; `late` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from ...ir.program import Budget
from ..chains.block_options import Grid, solve_whole
from ..contract import Feasible, Optimal, Planner, TimedOut
from ..instance import Instance, Order
from ..isolation.crew import is_foreign, is_portable, run_planner_apart
from ..isolation.endings import (
    Answered,
    Ending,
    Failed,
    NoResult,
    Overdue,
    PlannerRefused,
    Unloadable,
)
from ..programs.answer import ProgramAnswer
from ..solvers import MilpSolver
from .leaf_program import order_of_schedule, program_of_part
from .reduced.solve_level import LevelProblem

LEAF_S, LEVEL_S = 8.0, 8.0
"""No single program of a class gets more."""
LEAF_CHECKS, LEVEL_CHECKS = 20, 20
"""Nor does it look at its limits more often (`MilpSolver.solve`)."""
_GRACE_S = 1.0


@dataclass(frozen=True)
class PartOptions:
    """Orders of a class's instance, and whether the clock ended the search for them; `failure` is
    what a leaf solver did that did not do its work."""

    orders: tuple[Order, ...]
    late: bool
    failure: str | None = None


@dataclass(frozen=True)
class GridJob:
    """Integer programs for `peaks` times `saves` budgets: the compact one of a leaf (`level` is
    None), or the reduced one of a level."""

    part: Instance
    level: LevelProblem | None
    peaks: int
    saves: int

    def run(self, solver: MilpSolver, limit_s: float) -> PartOptions:
        deadline = monotonic() + limit_s
        each_s = LEAF_S if self.level is None else LEVEL_S
        grid = Grid(self.part, self.peaks, self.saves, self._solve, each_s)
        for peak in grid.rows():
            grid.enter(grid.solve_row(peak, solver, deadline))
        return PartOptions(tuple(grid.orders), grid.late)

    def _solve(
        self, block: Instance, peak: int, saved: int, solver: MilpSolver, limit_s: float
    ) -> ProgramAnswer:
        if self.level is not None:
            return self.level.solve(peak, saved, solver, limit_s, most_checks=LEVEL_CHECKS)
        return solve_whole(block, peak, saved, solver, limit_s, LEAF_CHECKS)


@dataclass(frozen=True)
class PlannerJob:
    """Plans of a leaf by any planner for `peaks` budgets. One of another package runs in a process
    of its own, wherever the job does."""

    part: Instance
    planner: Planner
    peaks: int

    def run(self, solver: MilpSolver, limit_s: float) -> PartOptions:
        deadline = monotonic() + limit_s
        part = self.part
        program = program_of_part(part)
        high = part.peak(part.capture)
        low = max(1, Grid(part, 1, 1).low)
        orders: list[Order] = []
        for k in range(1, self.peaks):
            left = deadline - monotonic()
            if left <= 0:
                return PartOptions(tuple(orders), late=True)
            peak = high - (high - low) * k // max(1, self.peaks - 1)
            ending = run_planner_apart(
                self.planner,
                program,
                Budget(max(1, peak), "device"),
                time_limit_s=min(LEAF_S, left),
                patience_s=min(LEAF_S, left) * 1.25 + _GRACE_S,
                progress=None,
                in_process=is_foreign(self.planner) and is_portable(self.planner),
            )
            answer = _order_of(part, ending)
            if isinstance(answer, str):
                return PartOptions(tuple(orders), late=False, failure=answer)
            if answer is None:
                break  # less is asked of it next, which it has no plan for either
            orders.append(answer)
        return PartOptions(tuple(orders), late=False)


def _order_of(part: Instance, ending: Ending) -> Order | str | None:
    """The order that a planner answered with; None where it has no plan; what it did instead."""
    match ending:
        case Answered(Optimal(schedule=schedule) | Feasible(schedule=schedule)):
            order = order_of_schedule(part, schedule)
            return f"answered with {order}" if isinstance(order, str) else order
        case Answered(TimedOut(schedule=schedule)) if schedule is not None:
            order = order_of_schedule(part, schedule)
            return f"answered with {order}" if isinstance(order, str) else order
        case Answered():
            return None
        case PlannerRefused(diagnostics):
            return f"refused: {diagnostics[0].message}"
        case Failed(what):
            return f"failed: {what}"
        case NoResult(what):
            return f"returned {what}"
        case Unloadable(reason):
            return f"cannot be loaded: {reason}"
        case Overdue():
            return "did not come back and was ended"
