"""`autocapper`: any planner under a larger budget, and copies for what is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ...ir.schedule import Compute, Free
from ..contract import Planner, makes_copies
from ..eviction.dtr import Dtr
from ..instance import Order
from ..kit import Budget, Feasible, NotApplicable, Optimal, PlanResult, TimedOut
from ..spelling.options import at_least
from .copies.improve import improve
from .copies.task import CopyPlanner, CopyTask

_MOST_WORK, _FEWEST = 240_000, 4
"""Caps times entries of the order; so few at the least."""


@dataclass(frozen=True)
class AutoCapper(CopyPlanner):
    """Shilova 2021, section 4.3: the planner `of` recomputes under `caps` budgets between the
    budget and the peak, fewer for large graphs; what is over the budget then goes to the host,
    oldest first. The fastest plan is the answer, so it is never slower than that of `of`, nor than
    moving alone."""

    name: ClassVar[str] = "autocapper"
    applicability: ClassVar[str] = "what the planner it runs accepts, on a target with a link"
    source: ClassVar[str] = "Shilova 2021, section 4.3"
    of: Planner = field(default_factory=lambda: Dtr(rounds=0))
    caps: int = at_least(2, 12)

    @classmethod
    def check_options(cls, of: Planner, caps: int) -> Iterator[tuple[str, str]]:
        if makes_copies(of):
            yield "of", "cannot be a planner that copies itself"

    def search_copies(self, task: CopyTask) -> PlanResult:
        budget, limit_s = task.task.budget, task.task.left_s
        capture = task.instance.capture
        high = task.instance.peak(capture)
        task.try_gaps(capture, task.gaps(capture))
        if budget is None or high <= task.task.limit_bytes or task.is_best_possible:
            return task.answer()
        most = min(self.caps, max(_FEWEST, _MOST_WORK // len(task.instance.names_C)))
        run = _Caps(self.of, task, budget, high, limit_s / (most + 3))
        for share in (i / (most - 1) for i in range(most - 1)):
            run.try_share(share)
        step = 1 / (most - 1) if most == self.caps else 0.0
        while step > 0.02 and run.best_share is not None and not task.late:
            step /= 2
            centre = run.best_share
            for share in (centre - step, centre + step):
                run.try_share(share)
        if isinstance(run.first, NotApplicable) and task.best is None:
            return run.first
        improve(task)
        return task.answer(run.first)


class _Caps:
    """Runs the inner planner at places between the budget (0) and the peak (1)."""

    def __init__(self, of: Planner, task: CopyTask, budget: Budget, high: int, limit_s: float):
        self.of, self.task, self.budget, self.high = of, task, budget, high
        self.limit_s = limit_s
        self.tried: set[int] = set()
        self.orders: set[tuple[int, ...]] = set()
        self.first: PlanResult | None = None
        self.best_share: float | None = None
        self.refused = False

    def try_share(self, share: float) -> None:
        low = self.budget.bytes
        cap = int(low + share * (self.high - low))
        if cap in self.tried or not low <= cap < self.high or self.refused:
            return
        if self.task.late or self.task.is_best_possible:
            return
        self.tried.add(cap)
        program = self.task.instance.program
        result = self.of.plan(program, Budget(cap, self.budget.kind), time_limit_s=self.limit_s)
        self.first = self.first or result
        self.refused = isinstance(result, NotApplicable)
        if not isinstance(result, Optimal | Feasible | TimedOut) or result.schedule is None:
            return
        steps = result.schedule.steps
        if not all(isinstance(step, Compute | Free) for step in steps):
            return
        index = {name: c for c, name in enumerate(self.task.instance.names_C)}
        self._try_order([index[step.cnode] for step in steps if isinstance(step, Compute)], share)

    def _try_order(self, order: Order, share: float) -> None:
        if tuple(order) in self.orders:
            return
        self.orders.add(tuple(order))
        before = self.task.best
        self.task.try_gaps(order, self.task.gaps(order))
        if self.task.best is not before:
            self.best_share = share
