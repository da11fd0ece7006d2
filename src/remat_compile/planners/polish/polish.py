"""`polish`: improves the plan of another planner, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from time import monotonic
from typing import ClassVar

from ...ir.schedule import Compute, Free, Schedule
from ...ir.semantics.simulate import simulate
from ..contract import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    Planner,
    PlanResult,
    TimedOut,
    makes_copies,
)
from ..eviction.dtr import Dtr
from ..instance import Order
from ..offload.copies.read_moves import moves_of
from ..offload.copies.task import CopyTask
from ..programs.answer import reporter
from ..programs.events import Windows, window_events
from ..programs.solve_compact import solve_events
from ..results import Task, peak_of
from ..search import SearchPlanner
from ..solvers import MilpSolver
from .windows import JointWindows

_SMALLEST, _FIRST, _LARGEST = 40, 150, 4000
"""Options of a window: the least, those of the first one, and the most."""
_QUICK_S, _SLOW_S = 1.0, 10.0
"""Windows grow while they are solved in less than the one, and end after the other."""
_IDLE = 40
"""The search ends after this many windows without a gain."""
_IDLE_WITH_COPIES = 20
"""The same in plans with copies, whose windows take longer."""


@dataclass(frozen=True)
class Polish(SearchPlanner):
    """Large neighbourhood search; ours. Takes the plan of the planner `of` and decides
    windows of it anew with the compact ILP, all else as it was; in a plan with copies also what is
    on the host meanwhile. The result is never slower and never over the budget. Ends with the time
    limit (half of it at most is the other planner's), or after 40 windows without gain, 20 with
    copies. `seed` is that of the windows. With `offload` a plan without copies may get some, on a
    target with a link."""

    name: ClassVar[str] = "polish"
    applicability: ClassVar[str] = "what the planner it improves accepts"
    source: ClassVar[str] = "ours: large neighbourhood search over Zhao 2024, 2.4"
    of: Planner = field(default_factory=Dtr)
    seed: int = 0
    offload: bool = False

    @classmethod
    def check_options(cls, of: Planner, seed: int, offload: bool) -> Iterator[tuple[str, str]]:
        if isinstance(of, Polish):
            yield "of", "cannot be polish itself"

    @property
    def copies(self) -> bool:
        """True if its schedules may copy to the host: as the other planner's may, or with
        `offload`."""
        return self.offload or makes_copies(self.of)

    def search(self, task: Task) -> PlanResult:
        half_s, tell = task.left_s / 2, task.progress
        given = self.of.plan(task.program, task.budget, time_limit_s=half_s, progress=tell)
        match given:
            case Infeasible() | NotApplicable() | TimedOut(schedule=None):
                return given
            case Optimal() if not self._may_add_copies(task, given):
                return given
            case Optimal() | Feasible() | TimedOut():
                assert given.schedule is not None
        if given.schedule.has_copies or self._may_add_copies(task, given):
            return self._with_copies(task, given, given.schedule)
        order = _order(task, given.schedule)
        if order is None:
            return given
        search = Descent(task, order, Random(self.seed))
        search.run()
        better = task.schedule(search.best)
        trace = simulate(task.program, better)
        fits = peak_of(trace, task.instance.kind) <= task.limit_bytes
        if not fits or trace.time_ns >= given.time_ns:
            return given
        return task.answer(search.best, given.lower_bound_ns or 0)

    def _may_add_copies(self, task: Task, given: Optimal | Feasible | TimedOut) -> bool:
        """Where no copies are in the plan yet, and any could help."""
        has_link, slow = task.program.target.has_link, task.instance.base_time_ns < given.time_ns
        return self.copies and has_link and slow and task.budget is not None

    def _with_copies(
        self, task: Task, given: Optimal | Feasible | TimedOut, schedule: Schedule
    ) -> PlanResult:
        """The same with windows in which tensors may be on the host."""
        copying = CopyTask(task)
        order, moves = moves_of(task.instance, schedule)
        copying.try_moves(order, moves)
        if copying.best is None:
            copying.try_gaps(order, [move.gap for move in moves])
        search = _JointDescent(copying, Random(self.seed))
        search.run()
        result = copying.answer()
        # Bounds of a planner that does not copy say nothing of plans that do.
        knows = schedule.has_copies or makes_copies(self.of)
        bound = max(task.instance.base_time_ns, (given.lower_bound_ns or 0) if knows else 0)
        if not isinstance(result, Optimal | Feasible) or result.time_ns >= given.time_ns:
            if knows:
                return given
            if isinstance(given, Optimal):  # among plans that do not copy
                return Feasible(schedule, given.time_ns, bound)
            return replace(given, lower_bound_ns=bound)
        return replace(result, lower_bound_ns=bound) if isinstance(result, Feasible) else result


def _order(task: Task, schedule: Schedule) -> Order | None:
    """The computations of a schedule, in order; None where it does more than compute and free,
    or holds its budget only thanks to frees that stand earlier than the last use."""
    index = {name: i for i, name in enumerate(task.instance.names_C)}
    if not all(isinstance(step, Compute | Free) for step in schedule.steps):
        return None
    order = [index[step.cnode] for step in schedule.steps if isinstance(step, Compute)]
    if set(order) != set(task.instance.capture) or task.instance.peak(order) > task.limit_bytes:
        return None
    return order


class Descent:
    def __init__(self, task: Task, order: Order, rng: Random):
        self.task = task
        self.best = order
        self.windows = Windows(task.instance, rng)
        self.tell = reporter("polish", task.instance, task.progress)

    def run(self) -> None:
        """Windows until the deadline, or until none gains anything any more."""
        inst = self.task.instance
        size, idle = _FIRST, 0
        with MilpSolver() as solver:
            while idle < _IDLE and inst.time_ns(self.best) > inst.base_time_ns:
                began = monotonic()
                left = self.task.left_s
                if left <= 0.05:
                    return
                gained, done = self._improve(size, min(_SLOW_S, left), solver)
                idle = 0 if gained else idle + 1
                took = monotonic() - began
                if not done:
                    size = max(_SMALLEST, size * 2 // 3)
                elif took < _QUICK_S and not gained:
                    size = min(_LARGEST, size + size // 8)

    def _improve(self, size: int, limit_s: float, solver: MilpSolver) -> tuple[bool, bool]:
        """Decides one window; whether that gained anything, and was solved to the end."""
        inst = self.task.instance
        now = inst.time_ns(self.best)
        events, runs = window_events(inst, self.best, self.windows.draw(size))
        answer = solve_events(
            inst,
            events,
            self.task.limit_bytes,
            time_limit_s=limit_s,
            start=runs,
            cutoff_ns=now,
            solver=solver,
        )
        done = answer.status in ("optimal", "infeasible")
        if answer.order is None or answer.time_ns >= now:
            return False, done
        self.best = answer.order
        self.tell(answer.order, answer.time_ns)
        return True, done


class _JointDescent:
    """Windows of a plan with copies, until the deadline or until none gains anything any more. How
    large they are, and where the solver ends, does not depend on the clock."""

    def __init__(self, task: CopyTask, rng: Random):
        self.task, self.rng = task, rng
        self.tell = reporter("polish", task.instance, task.task.progress)

    def run(self) -> None:
        task, idle = self.task, 0
        if task.best is None or task.is_best_possible:
            return
        with MilpSolver() as solver:
            windows = JointWindows(task, self.rng, solver)
            while idle < _IDLE_WITH_COPIES and not task.is_best_possible:
                left_s = task.task.deadline - monotonic()
                if left_s <= 0.05:
                    return
                if windows.improve(left_s):
                    idle = 0
                    self.tell(list(task.best.order), task.best.time_ns)
                else:
                    idle += 1
