"""`checkmate`: the program of Jain et al. on the whole graph, or its relaxation, rounded."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from .kit import Budget, Order, PlanResult, Program, Progress, Task, checked, format_planner
from .programs.answer import conclude, teller, too_large
from .programs.checkmate import checkmate_model, rounded_orders
from .programs.solve_compact import CompactAnswer
from .solvers import MilpSolver
from .solvers.milp import Status, Vector

__all__ = ["Checkmate"]

_MOST_EXACT = 120
_MOST_ROUNDED = 400
"""cNodes; the program grows with their square."""
_ALLOWANCES = (0.0, 0.1, 0.2, 0.3, 0.45)
"""Shares of the budget that the relaxation leaves free for what rounding adds."""


@dataclass(frozen=True)
class Checkmate:
    """Jain et al. 2020, as Zhao 2024 (2.1.1) prints it: a cNode and its results are one
    node, kept and dropped together. `rounding` solves only the relaxation and rounds it
    in two phases: quick, and not optimal."""

    name: ClassVar[str] = "checkmate"
    applicability: ClassVar[str] = "any graph of up to 120 cNodes; rounded, 400"
    source: ClassVar[str] = "Jain et al. 2020; Zhao 2024, 2.1.1"
    rounding: bool = False

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
        task = Task.of(program, budget, format_planner(self), deadline)
        most = _MOST_ROUNDED if self.rounding else _MOST_EXACT
        hint = "use rk-checkmate" if self.rounding else "use checkmate{rounding=true}, rk-checkmate"
        refusal = too_large(task, most, hint)
        if refusal is not None:
            return refusal
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        with MilpSolver() as solver:
            search = _Search(task, solver, deadline, progress)
            found = search.rounded() if self.rounding else search.exact()
        return conclude(task, found)


class _Search:
    def __init__(self, task: Task, solver: MilpSolver, deadline: float, progress: Progress | None):
        self.task, self.solver, self.deadline = task, solver, deadline
        self.tell = teller("checkmate", task.instance, progress)
        self.best: Order | None = None
        self.best_ns = 0

    def offer(self, order: Order) -> None:
        """Takes an order that is under the budget and better."""
        inst = self.task.instance
        if inst.peak(order) > self.task.limit_bytes:
            return
        time_ns = inst.time_ns(order)
        if self.best is None or time_ns < self.best_ns:
            self.best, self.best_ns = order, time_ns
            self.tell(order, time_ns)

    def exact(self) -> CompactAnswer:
        model = checkmate_model(self.task.instance, self.task.limit_bytes)

        def take(point: Vector, _: float) -> None:
            self.offer(model.order(point))

        found = self.solver.solve(model.milp, self.deadline - monotonic(), on_point=take)
        if found.point is not None:
            take(found.point, found.objective)
        if self.best is None:
            known: Status = "infeasible" if found.status == "infeasible" else "unknown"
            return CompactAnswer(known, None, 0, self.task.instance.base_time_ns)
        return self._answer()

    def rounded(self) -> CompactAnswer:
        inst, limit = self.task.instance, self.task.limit_bytes
        late = False
        for allowance in _ALLOWANCES:
            room = int((limit - inst.base_bytes) * (1 - allowance))
            model = checkmate_model(inst, inst.base_bytes + room)
            found = self.solver.solve(model.milp.relaxed(), self.deadline - monotonic())
            late = late or found.status == "unknown"
            if found.point is None:
                break
            for order in rounded_orders(model, found.point):
                self.offer(order)
        if self.best is None:
            return CompactAnswer("unknown" if late else "infeasible", None, 0, inst.base_time_ns)
        return self._answer()

    def _answer(self) -> CompactAnswer:
        """The best of the nodes' orders; finer ones may be faster, so it bounds nothing."""
        assert self.best is not None
        bound = self.task.instance.base_time_ns
        return CompactAnswer("feasible", self.best, self.best_ns, bound)
