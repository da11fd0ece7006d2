"""`vdnn`: tensors go to the host behind computations that take long enough."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from ..kit import (
    Budget,
    PlanResult,
    Program,
    Progress,
)
from .copies.task import CopyTask


@dataclass(frozen=True)
class Vdnn:
    """Rhu et al. 2016 as Shilova 2021, section 3.4.1, compares it: for each threshold of the time
    of the last reader for a byte, all tensors above it are moved, and every other one of them; the
    fastest that fits. O(n log n) for each threshold."""

    name: ClassVar[str] = "vdnn"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Rhu et al. 2016; Shilova 2021, 3.4.1"
    copies: ClassVar[bool] = True

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        task = CopyTask.of(program, budget, self.name, monotonic() + time_limit_s)
        order = task.instance.capture
        for gaps in task.thresholds(order):
            if task.late or task.is_best_possible:
                break
            task.try_gaps(order, gaps)
        if not task.gaps(order):
            task.try_gaps(order, [])
        return task.answer()
