"""`checkmate`: the program of Jain et al. on the whole graph, or its relaxation, rounded."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from ..kit import PlanResult, SearchPlanner, Task
from ..solvers import MilpSolver
from ..solvers.milp import Status, Vector
from .answer import Incumbent, ProgramAnswer, conclude, reporter, too_large
from .checkmate_rows import checkmate_model, rounded_orders

_MOST_EXACT = 120
_MOST_ROUNDED = 400
"""cNodes; the program grows with their square."""
_ALLOWANCES = (0.0, 0.1, 0.2, 0.3, 0.45)
"""Shares of the budget that the relaxation leaves free for what rounding adds."""


@dataclass(frozen=True)
class Checkmate(SearchPlanner):
    """Jain et al. 2020, as Zhao 2024 (2.1.1) prints it: a cNode and its results are one
    node, kept and dropped together. `rounding` solves only the relaxation and rounds it
    in two phases: quick, and not optimal."""

    name: ClassVar[str] = "checkmate"
    applicability: ClassVar[str] = "any graph of up to 120 cNodes; rounded, 400"
    source: ClassVar[str] = "Jain et al. 2020; Zhao 2024, 2.1.1"
    rounding: bool = False

    def search(self, task: Task) -> PlanResult:
        most = _MOST_ROUNDED if self.rounding else _MOST_EXACT
        hint = "use rk-checkmate" if self.rounding else "use checkmate{rounding=true}, rk-checkmate"
        refusal = too_large(task, most, hint)
        if refusal is not None:
            return refusal
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        incumbent = Incumbent(
            task.instance, task.limit_bytes, reporter(self.name, task.instance, task.progress)
        )
        with MilpSolver() as solver:
            solve = _rounded if self.rounding else _exact
            return conclude(task, solve(task, solver, incumbent))


# The nodes' orders are coarse and finer ones may be faster: nothing here bounds other planners.


def _exact(task: Task, solver: MilpSolver, incumbent: Incumbent) -> ProgramAnswer:
    model = checkmate_model(task.instance, task.limit_bytes)

    def take(point: Vector, _: float) -> None:
        incumbent.offer(model.order(point))

    solved = solver.solve(model.milp, task.deadline - monotonic(), on_point=take)
    if solved.point is not None:
        take(solved.point, solved.objective)
    ended: Status = "infeasible" if solved.status == "infeasible" else "feasible"
    return incumbent.answer(ended, task.instance.base_time_ns)


def _rounded(task: Task, solver: MilpSolver, incumbent: Incumbent) -> ProgramAnswer:
    inst, limit = task.instance, task.limit_bytes
    late = False
    for allowance in _ALLOWANCES:
        room = int((limit - inst.base_bytes) * (1 - allowance))
        model = checkmate_model(inst, inst.base_bytes + room)
        relaxed = solver.solve(model.milp.relaxed(), task.deadline - monotonic())
        late = late or relaxed.status == "unknown"
        if relaxed.point is None:
            break
        for order in rounded_orders(model, relaxed.point):
            incumbent.offer(order)
    return incumbent.answer("unknown" if late else "infeasible", inst.base_time_ns)
