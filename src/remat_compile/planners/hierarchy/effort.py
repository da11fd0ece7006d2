"""Options for the classes of a hierarchy, anytime: closed forms for all of them first, integer
programs then, where they matter most. `late` says that the time limit ended one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..contract import Planner, Progress
from ..eviction.search import Search
from ..instance import Instance, Order
from ..registry import format_planner
from ..workers.pool import Job, Workers
from .jobs import GridJob, PartOptions, PlannerJob
from .partition.tree import PartClass, Tree
from .quick import priced_orders, quick_orders
from .reduced.solve_level import LevelProblem

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
    """So often has the leaf solver failed."""

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
        search = Search(instance, int(share * high), min(deadline, inf), (False,))
        search.run(0, 0)
        if search.best is not None:
            orders.append(search.best)
    return orders
