"""`offload-greedy`: the oldest tensors go to the host, as many as must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..kit import PlanResult
from .copies.task import CopyPlanner, CopyTask


@dataclass(frozen=True)
class OffloadGreedy(CopyPlanner):
    """Shilova 2021, Theorem 8: of the tensors that wait through the fullest moment, those made
    first are moved, until the rest fits; nothing is recomputed. Optimal there for fractions of
    tensors. O(n log n)."""

    name: ClassVar[str] = "offload-greedy"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Shilova 2021, Theorem 8"

    def search_copies(self, task: CopyTask) -> PlanResult:
        order = task.instance.capture
        task.try_gaps(order, task.gaps(order))
        return task.answer()
