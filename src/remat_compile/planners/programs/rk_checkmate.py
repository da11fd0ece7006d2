"""`rk-checkmate`: an integer program on the whole graph, in two forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, isfinite
from time import monotonic
from typing import ClassVar, Literal

from ..kit import Order, PlanResult, SearchPlanner, Task
from ..solvers import MilpSolver
from ..spelling.options import at_least
from .answer import ProgramAnswer, conclude, quick_order, reporter, saved_bytes_of, too_large
from .events import FEW, Pairs, useful_pairs
from .rk_checkmate_rows import thesis_model
from .solve_compact import solve_compact

_MOST_COMPACT = 1500
_MOST_THESIS = 120
"""cNodes; the program grows with their square."""


@dataclass(frozen=True)
class RkCheckmate(SearchPlanner):
    """Zhao 2024, section 2.4: the fastest plan with first executions as captured and each
    cNode at most once more between two of them.

    `form` is `compact`, or `thesis`: as printed, for graphs of 35 cNodes or so. `backward`
    lets backward cNodes run again too (none: the compact form in tiny graphs and where
    there is no plan without, the thesis form always). `saved_bytes` bounds what is alive
    when the loss starts, counted as the budget is.
    """

    name: ClassVar[str] = "rk-checkmate"
    applicability: ClassVar[str] = "any graph of up to 1500 cNodes"
    source: ClassVar[str] = "Zhao 2024, 2.4"
    form: Literal["compact", "thesis"] = "compact"
    backward: bool | None = None
    saved_bytes: int | None = at_least(0, None)

    @classmethod
    def check_options(
        cls, form: str, backward: bool | None, saved_bytes: int | None
    ) -> Iterator[tuple[str, str]]:
        if form == "thesis" and backward is False:
            yield "backward", "cannot be false with form=thesis, which always has it"

    def search(self, task: Task) -> PlanResult:
        thesis = self.form == "thesis"
        refusal = too_large(
            task,
            _MOST_THESIS if thesis else _MOST_COMPACT,
            "use rk-checkmate" if thesis else "use rockmate, polish or dtr",
        )
        if refusal is not None:
            return refusal
        if self._fits(task, task.instance.capture):
            return task.answer(task.instance.capture)
        answer = _thesis(task, self) if thesis else self._compact(task)
        return conclude(task, answer, self.saved_bytes)

    def _fits(self, task: Task, order: Order) -> bool:
        if task.instance.peak(order) > task.limit_bytes:
            return False
        saved = self.saved_bytes
        return saved is None or saved_bytes_of(task.instance, order) <= saved

    def _compact(self, task: Task) -> ProgramAnswer:
        scopes: tuple[bool, ...] = (False, True)
        if self.backward is not None:
            scopes = (self.backward,)
        elif sum(map(len, Pairs(task.instance, backward=True).every())) <= FEW:
            scopes = (True,)
        answer = ProgramAnswer("unknown", None, 0, task.instance.base_time_ns)
        with MilpSolver() as solver:
            for backward in scopes:
                answer = self._in_scope(task, backward, solver)
                if answer.status != "infeasible":
                    break
        return answer

    def _in_scope(
        self,
        task: Task,
        backward: bool,
        solver: MilpSolver,
    ) -> ProgramAnswer:
        inst, limit, saved = task.instance, task.limit_bytes, self.saved_bytes
        start = quick_order(inst, limit, task.deadline, backward=backward, saved_bytes=saved)
        left_s = task.deadline - monotonic()
        if start is not None and left_s <= 0:  # stating the program alone takes seconds
            return ProgramAnswer("feasible", start, inst.time_ns(start), inst.base_time_ns)
        answer = solve_compact(
            inst,
            limit,
            saved_bytes=saved,
            time_limit_s=left_s,
            pairs=useful_pairs(inst, backward=backward),
            start=start,
            solver=solver,
            on_order=reporter(self.name, inst, task.progress),
        )
        if start is not None and (answer.order is None or inst.time_ns(start) < answer.time_ns):
            # Not in the family, or not yet found by the solver.
            time_ns = inst.time_ns(start)
            bound = inst.base_time_ns if answer.status == "infeasible" else answer.bound_ns
            return ProgramAnswer("feasible", start, time_ns, min(bound, time_ns))
        return answer


def _thesis(task: Task, options: RkCheckmate) -> ProgramAnswer:
    inst = task.instance
    model = thesis_model(inst, task.limit_bytes, options.saved_bytes)
    with MilpSolver() as solver:
        solved = solver.solve(model.milp, task.deadline - monotonic())
    bound = inst.base_time_ns
    if isfinite(solved.bound):
        bound = max(bound, floor(solved.bound * model.scale_ns - 1e-3))
    if solved.point is None:
        return ProgramAnswer(solved.status, None, 0, bound)
    order = model.order(solved.point)
    time_ns = inst.time_ns(order)
    if solved.status == "optimal":
        bound = time_ns
    return ProgramAnswer(solved.status, order, time_ns, min(bound, time_ns))
