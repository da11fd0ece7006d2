"""The bases of planners that search one program under one budget."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from ..ir.program import Budget, Program
from .contract import PlanResult, Progress
from .registry import format_planner
from .results import Task
from .spelling.options import checked


@dataclass(frozen=True)
class SearchPlanner:
    """A planner that is given its task: program, budget, deadline and who is told of progress."""

    name: ClassVar[str]
    applicability: ClassVar[str]
    source: ClassVar[str]

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
        """As `Planner.plan`."""
        deadline = monotonic() + time_limit_s
        return self.search(Task.of(program, budget, format_planner(self), deadline, progress))

    def search(self, task: Task) -> PlanResult:
        """The answer to a task, by its deadline."""
        raise NotImplementedError
