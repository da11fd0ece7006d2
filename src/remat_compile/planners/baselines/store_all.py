"""`store-all`: each computation once, freed after its last use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..kit import PlanResult, SearchPlanner, Task


@dataclass(frozen=True)
class StoreAll(SearchPlanner):
    """The unplanned step: nothing is recomputed. Linear time. Optimal where it fits."""

    name: ClassVar[str] = "store-all"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "baseline: the unplanned step"

    def search(self, task: Task) -> PlanResult:
        order = task.instance.capture
        if task.instance.peak(order) > task.limit_bytes:
            return task.infeasible(order)
        return task.answer(order)
