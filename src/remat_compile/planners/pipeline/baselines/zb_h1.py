"""`zb-h1`: gradients of parameters are made in what would be idle time. A baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract import PipelinePlanner, PipelineResult, PipelineTask, without_recompute
from ..search.balanced import balanced
from ..search.list_schedule import planned_by_order


@dataclass(frozen=True)
class ZeroBubbleH1(PipelinePlanner):
    """Qi et al. 2023, schedule ZB-H1, on stages of balanced load. Forwards and backwards have the
    order of 1F1B. On rank r, gradients of parameters of r micro-batches may wait until the rank is
    idle."""

    name: ClassVar[str] = "zb-h1"
    source: ClassVar[str] = "Qi et al. 2023"

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = without_recompute(task.layers)
        found = balanced(layers)
        if found is None:
            return task.infeasible()
        last = len(found[1]) - 1
        return planned_by_order(task, layers, found[1], lambda rank: last - rank, defers=True)
