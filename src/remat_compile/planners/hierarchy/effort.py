"""Options for the classes of a hierarchy, anytime: closed forms for all of them first, integer
programs then, where they matter most. `late` says that the time limit ended one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from ...ir.program import Budget
from ..chains.block_options import Grid, solve_whole
from ..contract import Feasible, Optimal, Planner, Progress, TimedOut
from ..eviction.search import Search
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
from ..registry import format_planner
from ..solvers import MilpSolver
from ..workers.pool import Job, Workers
from .leaf_program import order_of_schedule, program_of_part
from .partition.levels import PartClass, Tree
from .reduced.options import priced_orders, quick_orders
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


_WALKED = 400
"""Classes of more cNodes are not walked for quick options."""
_WALKS = (0.85, 0.7, 0.55)
"""Peaks of walks, as shares of the peak with all saved."""
_FAILURES = 2
"""A leaf solver that failed so often is not asked again."""


@dataclass
class Effort:
    """`solver` plans leaves (None: the compact integer program); `peaks` and `saves` are the
    budgets of each class, `options` those that its parent chooses among."""

    tree: Tree
    peaks: int
    saves: int
    options: int
    solver: Planner | None
    workers: Workers
    progress: Progress
    late: bool = False
    failures: int = 0
    """The number of failures of the leaf solver."""

    def fill(self, deadline: float) -> None:
        """Closed forms and a few walks for every class, children first. Quick."""
        for part in self.tree.classes[:-1]:
            if monotonic() > deadline:
                self.late = True
                return
            self._enter(part, quick_orders(part.instance))
            if len(part.instance.names_C) <= _WALKED and part.is_leaf:
                self._enter(part, _walked(part.instance, deadline))
            if part.level is not None:
                self._enter_priced(part)

    def _enter(self, part: PartClass, orders: Iterable[Order]) -> None:
        known = set(map(tuple, part.orders))
        for order in orders:
            if tuple(order) not in known:
                known.add(tuple(order))
                part.orders.append(order)

    def _enter_priced(self, part: PartClass) -> None:
        problem = LevelProblem.of(part, self.options)
        lean = part.instance.without_idle
        self._enter(part, map(lean, priced_orders(problem.level, problem.prices)))

    def solve_leaves(self, deadline: float) -> None:
        """Integer programs, or the planner `solver`, for every leaf class, those first that most
        bytes of the whole are in."""
        leaves = [part for part in self.tree.classes[:-1] if part.is_leaf]
        self._each(sorted(leaves, key=_leverage), deadline)

    def solve_levels(self, deadline: float) -> None:
        """The reduced program for every class between leaves and root, children first."""
        inner = [part for part in self.tree.classes[:-1] if not part.is_leaf]
        for depth in sorted({part.depth for part in inner}):
            same = [part for part in inner if part.depth == depth]
            for part in same:
                self._enter_priced(part)  # with what its children now offer
            self._each(sorted(same, key=_leverage), deadline)

    def _each(self, parts: Sequence[PartClass], deadline: float) -> None:
        """Each class by one worker, so that what it finds does not hang on the others. A leaf
        solver that fails is named, and what is known of the class without it stays."""
        parts = [part for part in parts if part.instance.makable_C.count(True)]
        jobs = [self._job(part) for part in parts]
        for part, outcome in zip(parts, self.workers.map(jobs, deadline), strict=True):
            if outcome is None:
                self.late = True
                continue
            self.late = self.late or outcome.late
            self._enter(part, outcome.orders)
            if outcome.failure is not None:
                self._name(outcome.failure)
                if self.failures >= _FAILURES:
                    return

    def _job(self, part: PartClass) -> Job[PartOptions]:
        if not part.is_leaf:
            problem = LevelProblem.of(part, self.options)
            return GridJob(part.instance, problem, self.peaks, self.saves)
        if self.solver is not None:
            return PlannerJob(part.instance, self.solver, self.peaks)
        return GridJob(part.instance, None, self.peaks, self.saves)

    def _name(self, failure: str) -> None:
        assert self.solver is not None
        self.failures += 1
        name = format_planner(self.solver)
        self.progress(f"hiremate: {name} {failure}; quick options for a part instead")


def _leverage(part: PartClass) -> float:
    """The most bytes of the whole first."""
    inst = part.instance
    return -float(part.members * sum(inst.size_A[a] for c in inst.writes_C for a in c))


def _walked(instance: Instance, deadline: float) -> list[Order]:
    high = instance.peak(instance.capture)
    orders: list[Order] = []
    for share in _WALKS:
        search = Search(instance, int(share * high), deadline, (False,))
        search.run(0, 0)
        if search.best is not None:
            orders.append(search.best)
    return orders
