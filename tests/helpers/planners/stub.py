"""A planner whose answer a test decides."""

from __future__ import annotations

from typing import Any, ClassVar

from remat_compile.ir.program import Budget, Program
from remat_compile.planners.contract import PlanResult, Progress


class Stub:
    """The signature of a planner around `answer`, which a test's planner defines."""

    name: ClassVar[str] = "stub"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "a test"

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        result: PlanResult = self.answer(program, budget, time_limit_s)
        return result

    def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
        """The result of the planner, or what is none."""
        raise NotImplementedError
