"""`vdnn`: tensors go to the host behind computations that take long enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..kit import PlanResult
from .copies.task import CopyPlanner, CopyTask


@dataclass(frozen=True)
class Vdnn(CopyPlanner):
    """Rhu et al. 2016 as Shilova 2021, section 3.4.1, compares it: for each threshold of the time
    of the last reader for a byte, all tensors above it are moved, and every other one of them; the
    fastest that fits. O(n log n) for each threshold."""

    name: ClassVar[str] = "vdnn"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Rhu et al. 2016; Shilova 2021, 3.4.1"

    def search_copies(self, task: CopyTask) -> PlanResult:
        order = task.instance.capture
        for gaps in task.thresholds(order):
            if task.late or task.is_best_possible:
                break
            task.try_gaps(order, gaps)
        if not task.gaps(order):
            task.try_gaps(order, [])
        return task.answer()
