"""`chen`: square root of L segments, for a forward of L cNodes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from ..eviction.segments import cut_forward, forward_cnodes, segment_order
from ..kit import PlanResult, SearchPlanner, Task


@dataclass(frozen=True)
class Chen(SearchPlanner):
    """Chen et al. 2016: about the square root of L equal segments, the best number on a
    homogeneous chain (Shilova 2021, section 2.1); the rest as `periodic`. Linear time."""

    name: ClassVar[str] = "chen"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "Chen et al. 2016; Shilova 2021, 2.1"

    def search(self, task: Task) -> PlanResult:
        instance = task.instance
        length = len(forward_cnodes(instance))
        count = isqrt(max(0, length - 1)) + 1
        orders = (
            segment_order(instance, cut_forward(instance, count, by)) for by in ("count", "memory")
        )
        return task.best_of(orders)
