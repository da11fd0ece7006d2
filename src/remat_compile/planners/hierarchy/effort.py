"""Options for the classes of a hierarchy, anytime: closed forms for all of them first, integer
programs then, where they matter most.

Every program has a bound on its work besides the clock, so that the same input gives the same
options on a loaded machine, unless the time limit ends it; `late` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from ...ir.program import Budget
from ..chains.block_options import Grid, solve_whole
from ..contract import Feasible, Optimal, Planner, Progress, TimedOut
from ..eviction.search import Search
from ..instance import Instance, Order
from ..isolation.crew import run_planner_apart
from ..isolation.endings import Answered, Ending, Failed, NoResult, Overdue, Refused, Unloadable
from ..isolation.planner_process import is_foreign, is_portable
from ..isolation.process import processors
from ..programs.answer import ProgramAnswer
from ..registry import format_planner
from ..solvers import MilpSolver
from .leaf_program import order_of_schedule, program_of_part
from .quick import priced_orders, quick_orders
from .solve_level import LevelProblem
from .tree import PartClass, Tree

__all__ = ["Effort"]

LEAF_S, LEVEL_S = 8.0, 8.0
"""No single program of a class gets more."""
LEAF_CHECKS, LEVEL_CHECKS = 20, 20
"""Nor does it look at its limits more often (`MilpSolver.solve`)."""
_WALKED = 400
"""Classes of more cNodes are not walked for quick options."""
_WALKS = (0.85, 0.7, 0.55)
"""Peaks of walks, as shares of the peak with all saved."""
_GRACE_S = 1.0
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
    processes: int | None
    progress: Progress
    late: bool = False
    left_out: list[str] = field(default_factory=list)
    """Leaf solvers that failed, with what they did."""

    def fill(self, deadline: float) -> None:
        """Closed forms and a few walks for every class, children first. Quick."""
        for part in self.tree.classes[:-1]:
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
        """Each class by one worker, so that what it finds does not hang on the others."""
        parts = [part for part in parts if part.instance.makable_C.count(True)]
        if not parts:
            return
        workers = min(len(parts), self.processes or processors())

        def work(mine: PartClass, solver: MilpSolver) -> None:
            foreign = self.solver is not None and mine.is_leaf
            found = self._planned(mine, deadline) if foreign else self._grid(mine, solver, deadline)
            self._enter(mine, found)

        todo = list(parts)[::-1]

        def run() -> None:
            with MilpSolver() as solver:
                while todo:
                    work(todo.pop(), solver)

        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(run) for _ in range(workers)]:
                done.result()

    def _grid(self, part: PartClass, solver: MilpSolver, deadline: float) -> list[Order]:
        problem = None if part.is_leaf else LevelProblem.of(part, self.options)

        def solve(
            block: Instance, peak: int, saved: int, solver: MilpSolver, limit_s: float
        ) -> ProgramAnswer:
            if problem is not None:
                return problem.solve(peak, saved, solver, limit_s, most_checks=LEVEL_CHECKS)
            return solve_whole(block, peak, saved, solver, limit_s, LEAF_CHECKS)

        each_s = LEAF_S if problem is None else LEVEL_S
        grid = Grid(part.instance, self.peaks, self.saves, solve, each_s)
        for peak in grid.rows():
            grid.enter(grid.solve_row(peak, solver, deadline))
        self.late = self.late or grid.late
        return grid.orders

    def _planned(self, part: PartClass, deadline: float) -> list[Order]:
        """Plans of the planner `solver` for some peaks. One that fails is named, and what is
        known of the class without it stays."""
        assert self.solver is not None
        if len(self.left_out) >= _FAILURES:
            return []
        inst = part.instance
        program = program_of_part(inst)
        high = inst.peak(inst.capture)
        low = max(1, Grid(inst, 1, 1).low)
        found: list[Order] = []
        for k in range(1, self.peaks):
            left = deadline - monotonic()
            if left <= 0:
                self.late = True
                break
            peak = high - (high - low) * k // max(1, self.peaks - 1)
            ending = run_planner_apart(
                self.solver,
                program,
                Budget(max(1, peak), "device"),
                time_limit_s=min(LEAF_S, left),
                patience_s=min(LEAF_S, left) * 1.25 + _GRACE_S,
                progress=None,
                in_process=is_foreign(self.solver) and is_portable(self.solver),
            )
            answer = _order_of(inst, ending)
            if isinstance(answer, str):
                name = format_planner(self.solver)
                self.left_out.append(f"{name} {answer}")
                self.progress(f"hiremate: {name} {answer}; quick options for a part instead")
                break
            if answer is None:
                break  # less is asked of it next, which it has no plan for either
            found.append(answer)
        return found


def _leverage(part: PartClass) -> float:
    """The most bytes of the whole first."""
    inst = part.instance
    return -float(part.members * sum(inst.size_A[a] for c in inst.writes_C for a in c))


def _walked(instance: Instance, deadline: float) -> list[Order]:
    high = instance.peak(instance.capture)
    found: list[Order] = []
    for share in _WALKS:
        search = Search(instance, int(share * high), min(deadline, inf), (False,))
        search.run(0, 0)
        if search.best is not None:
            found.append(search.best)
    return found


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
        case Refused(diagnostics):
            return f"refused: {diagnostics[0].message}"
        case Failed(what):
            return f"failed: {what}"
        case NoResult(what):
            return f"returned {what}"
        case Unloadable(reason):
            return f"cannot be loaded: {reason}"
        case Overdue():
            return "did not come back and was ended"
