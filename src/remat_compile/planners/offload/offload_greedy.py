"""`offload-greedy`: the oldest tensors go to the host, as many as must."""

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
class OffloadGreedy:
    """Shilova 2021, Theorem 8: of the tensors that wait through the fullest moment, those made
    first are moved, until the rest fits; nothing is recomputed. Optimal there for fractions of
    tensors. O(n log n)."""

    name: ClassVar[str] = "offload-greedy"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Shilova 2021, Theorem 8"
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
        task.try_gaps(order, task.gaps(order))
        return task.answer()
