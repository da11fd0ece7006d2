"""A planner that answers with one given schedule, for `polish` in `auto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.program import Budget, Program
from ...ir.semantics.simulate import simulate
from ..contract import Feasible, PlanResult, Progress
from ..isolation.endings import parse_schedule


@dataclass(frozen=True)
class Given:
    """The schedule in `text`, which holds the budget. Linear time. Not registered."""

    name: ClassVar[str] = "given"
    applicability: ClassVar[str] = "the graph that the schedule belongs to"
    source: ClassVar[str] = "ours"
    text: str

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        schedule = parse_schedule(self.text)
        return Feasible(schedule, simulate(program, schedule).time_ns, None)
