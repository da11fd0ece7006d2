"""`one-f-one-b`: the least period over all contiguous partitions and 1-periodic schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .contract import (
    PipelinePlan,
    PipelinePlanner,
    PipelineResult,
    PipelineTask,
    Planned,
    without_recompute,
)
from .layers import Layers
from .pattern import one_f_one_b_star, pseudo_durations
from .search.contiguous import Contiguous, ContiguousSearch


@dataclass(frozen=True)
class OneFOneB(PipelinePlanner):
    """Exact among contiguous stages under 1F1B*, by `search/contiguous.py`.

    `options=recompute` lets a stage make inner values of its layers again. A step of m
    micro-batches gets the period that ends it first, which may be longer than the least.
    """

    name: ClassVar[str] = "one-f-one-b"
    source: ClassVar[str] = "Shilova 2021, section 5.3, with a program of our own"
    options: Literal["none", "recompute"] = "none"

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = task.layers
        if self.options == "none":
            layers = without_recompute(layers)
        search = ContiguousSearch(layers)
        least = search.least()
        if least is None:
            return task.infeasible()
        found = least
        if layers.microbatches is not None:
            found = search.for_step(layers.microbatches) or least
        return Planned(contiguous_plan(layers, task.planner, found), least.period_ns)


def contiguous_plan(layers: Layers, planner: str, found: Contiguous) -> PipelinePlan:
    """The plan of a partition under 1F1B*."""
    forward, backward = pseudo_durations(layers, found.stages, found.ways)
    pattern = one_f_one_b_star(forward, backward, found.period_ns)
    ranks = tuple(range(len(found.stages)))
    return PipelinePlan(layers, planner, found.stages, ranks, found.ways, pattern)
