"""`offmate`: parameters and gradients at home on the host, beside what `of` recomputes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...ir.diagnostics import fail
from ...ir.rewrites.updates import has_updates
from ...ir.wording import worded
from ..contract import Feasible, Optimal, Planner, TimedOut, makes_copies
from ..eviction.dtr import Dtr
from ..kit import PlanResult, SearchPlanner, Task
from ..solvers import MilpSolver
from .homes.search import HomesTask
from .in_backward import InBackward
from .updates_place import WAYS
from .updates_search import UpdatesTask

_ORDERS = 0.75
"""The share of time that is left when no more orders of another planner are asked for."""


@dataclass(frozen=True)
class OffMate(SearchPlanner):
    """Zhao 2024, chapter 4. Under a budget of activations alone it is `of`. Without an optimizer a
    linear program over segments of the step says which parameters and gradients are at home on the
    host, when each comes and goes, on orders that `of` has under several budgets. With one a linear
    program over blocks says where each update runs, what of it is at home on the host and what is
    made again. Local search goes on from there. No plan is slower than `of` itself or one way for
    all updates on its orders."""

    name: ClassVar[str] = "offmate"
    applicability: ClassVar[str] = "what the planner it runs accepts, on a target with a link"
    source: ClassVar[str] = "Zhao 2024, chapter 4"
    copies: ClassVar[bool] = True
    homes: ClassVar[bool] = True
    updates: ClassVar[bool] = True
    of: Planner = field(default_factory=lambda: Dtr(rounds=0))

    @classmethod
    def check_options(cls, of: Planner) -> Iterator[tuple[str, str]]:
        if makes_copies(of):
            yield "of", "cannot be a planner that copies itself"

    def search(self, task: Task) -> PlanResult:
        """FB0473 for a target without a link."""
        need_link(task)
        if task.budget is None or task.budget.kind == "activation":
            return renamed(self.of, task)
        if has_updates(task.program):
            return self._with_updates(UpdatesTask(task))
        homes = HomesTask(task)
        with MilpSolver() as solver:
            for order in homes.orders(self.of):
                homes.try_order(order, solver)
                if homes.is_best_possible or homes.late:
                    break
        return homes.answer()

    def _with_updates(self, steps: UpdatesTask) -> PlanResult:
        views = []
        for view in steps.orders(self.of):
            views.append(view)
            if steps.task.left_s < _ORDERS * steps.limit_s:
                break
        steps.first_fits(views, *WAYS)
        resident = renamed(self.of, steps.task)
        if isinstance(resident, Optimal | Feasible):
            steps.take(resident.schedule)
        with MilpSolver() as solver:
            steps.solve(solver)
        for view in views:
            if not steps.late:
                steps.search(view)
        for view in views:
            if steps.best is None:
                steps.note_least(view)
        return steps.answer()


def need_link(task: Task) -> None:
    """FB0473 for a target without a link."""
    target = task.program.target
    if not target.has_link:
        message = f'{task.planner} copies to the host, and target "{target.name}" has no link'
        hint = worded("name a {device} that has one, or give {link}", link="25GB/s")
        fail("FB0473", message, hint=hint, usage=True)


def renamed(of: Planner, task: Task) -> PlanResult:
    """The answer of another planner to the same task, under the task's name."""
    of = InBackward(of) if has_updates(task.program) else of
    result = of.plan(task.program, task.budget, time_limit_s=task.left_s, progress=task.progress)
    if isinstance(result, Optimal | Feasible | TimedOut) and result.schedule is not None:
        return replace(result, schedule=replace(result.schedule, planner=task.planner))
    return result
