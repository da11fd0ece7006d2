"""`store-all`: each computation once, freed after its last use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..kit import (
    Budget,
    PlanResult,
    Program,
    Progress,
    Task,
)


@dataclass(frozen=True)
class StoreAll:
    """The unplanned step: nothing is recomputed. Linear time. Optimal where it fits."""

    name: ClassVar[str] = "store-all"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "baseline: the unplanned step"

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        task = Task.of(program, budget, self.name)
        order = task.instance.capture
        if task.instance.peak(order) > task.limit_bytes:
            return task.infeasible(order)
        return task.answer(order)
