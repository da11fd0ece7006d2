"""`zb-h1`: gradients of parameters are made in what would be idle time. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..contract import PipelinePlanner, PipelineResult, PipelineTask, without_recompute
from ..search.balanced import balanced
from ..search.list_schedule import PassOf, order_of, planned_by_rule


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
        stages = found[1]
        ranks = tuple(range(len(stages)))
        m = layers.microbatches or 2 * layers.ranks
        orders = [order_of(rank, ranks, len(ranks), m) for rank in ranks]

        def rule(s: int, ready: Sequence[PassOf], began: Mapping[PassOf, int]) -> PassOf | None:
            at = began["fwd", s] + began["bwd", s]
            late = began["bwd", s] - began["wgt", s] > s
            choices: list[PassOf] = [*orders[s][at : at + 1], ("wgt", s)]
            return next((run for run in choices[:: -1 if late else 1] if run in ready), None)

        return planned_by_rule(task, layers, stages, ranks, rule, defers=True)
