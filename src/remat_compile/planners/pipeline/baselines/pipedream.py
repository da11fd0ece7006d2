"""`pipedream`: the partition of the least largest load, under 1F1B*. A baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..contract import (
    PipelinePlanner,
    PipelineResult,
    PipelineTask,
    Planned,
    plain_ways,
    without_recompute,
)
from ..one_f_one_b import contiguous_plan
from ..pattern import joined, least_period, pseudo_loads
from ..search.balanced import balanced
from ..search.contiguous import Contiguous


@dataclass(frozen=True)
class PipeDream(PipelinePlanner):
    """Narayanan et al. 2019 without replicated stages: partitions for the load alone, or with
    `memory=depth` under plain 1F1B's d copies of the d-th stage from the end; then takes the least
    period of 1F1B* that fits."""

    name: ClassVar[str] = "pipedream"
    source: ClassVar[str] = "Narayanan et al. 2019"
    memory: Literal["none", "depth"] = "none"

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = without_recompute(task.layers)
        copies = layers.copies if self.memory == "depth" else None
        found = balanced(layers, copies)
        period = None if found is None else least_period(layers, found[1])
        if found is None or period is None:
            return task.infeasible()
        _, stages = found
        lifetime = 0
        for load in reversed(pseudo_loads(layers, stages)):
            lifetime = joined(lifetime, load, period)
        contiguous = Contiguous(period, stages, plain_ways(layers, stages), lifetime)
        plan = contiguous_plan(layers, task.planner, contiguous)
        return Planned(plan, layers.least_period_ns)
