"""`moccasin`: retention intervals in constraint programming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from time import monotonic
from typing import ClassVar

from ..ir.diagnostics import Diagnostic, FBError
from .kit import Budget, Order, PlanResult, Program, Progress, Task, checked, format_planner
from .programs.answer import conclude, teller, too_large
from .programs.retention import retention
from .programs.solve_compact import CompactAnswer
from .solvers.process import Message, Worker

__all__ = ["Moccasin"]

_MOST = 300
_MODULE = f"{__package__}.solvers.cpsat"


@dataclass(frozen=True)
class Moccasin:
    """Bartan et al. 2023: each cNode runs at most `copies` times, and each run retains its
    results for an interval. Solved by CP-SAT, which the extra `cpsat` installs. `backward`
    lets backward cNodes run again too."""

    name: ClassVar[str] = "moccasin"
    applicability: ClassVar[str] = "any graph of up to 300 cNodes; needs the extra cpsat"
    source: ClassVar[str] = "Bartan et al. 2023"
    copies: int = 2
    backward: bool = False

    def __post_init__(self) -> None:
        checked(self)

    @classmethod
    def check_options(cls, copies: int, backward: bool) -> Iterator[tuple[str, str]]:
        if copies < 2:
            yield "copies", f"must be at least 2, not {copies}"

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        """As every planner. FB0410 where OR-Tools is not installed."""
        deadline = monotonic() + time_limit_s
        task = Task.of(program, budget, format_planner(self), deadline)
        if find_spec("ortools") is None:
            raise _not_installed()
        refusal = too_large(task, _MOST, "use rockmate, polish or dtr")
        if refusal is not None:
            return refusal
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        return conclude(task, self._solve(task, deadline, progress))

    def _solve(self, task: Task, deadline: float, progress: Progress | None) -> CompactAnswer:
        inst = task.instance
        problem = retention(inst, task.limit_bytes, self.copies, self.backward)
        tell = teller(self.name, inst, progress)
        best: list[Order] = []
        status: list[str] = []

        def take(message: Message) -> bool:
            head, _ = message
            if head.get("last"):
                status.append(head["status"])
                return True
            order = problem.order(head["runs"])
            better = not best or inst.time_ns(order) < inst.time_ns(best[0])
            if inst.peak(order) <= task.limit_bytes and better:
                best[:] = [order]
                tell(order, inst.time_ns(order))
            return False

        with Worker(_MODULE) as worker:
            worker.ask(problem.request, {}, deadline - monotonic(), take)
        if not best:
            known = status == ["infeasible"]
            return CompactAnswer("infeasible" if known else "unknown", None, 0, inst.base_time_ns)
        # With a limit on copies, its optimum bounds no other planner's.
        return CompactAnswer("feasible", best[0], inst.time_ns(best[0]), inst.base_time_ns)


def _not_installed() -> FBError:
    return FBError(
        Diagnostic(
            "FB0410",
            "moccasin needs OR-Tools, which is not installed",
            hint='pip install "remat-compile[cpsat]", or use rk-checkmate',
        ),
        usage=True,
    )
