"""`gpipe`: all forwards, then all backwards. A baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..contract import PipelinePlanner, PipelineResult, PipelineTask, without_recompute
from ..search.balanced import balanced
from ..search.list_schedule import planned_by_order


@dataclass(frozen=True)
class GPipe(PipelinePlanner):
    """Huang et al. 2019: stages of balanced load; each holds all micro-batches of the step at the
    end of the forwards."""

    name: ClassVar[str] = "gpipe"
    source: ClassVar[str] = "Huang et al. 2019"

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = without_recompute(task.layers)
        microbatches = layers.microbatches or 2 * layers.ranks
        found = balanced(layers, lambda _: microbatches)
        if found is None:
            return task.infeasible()
        return planned_by_order(task, layers, found[1], lambda _: microbatches)
