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
from .pattern import Pattern, one_f_one_b_star
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
    pattern = contiguous_pattern(layers, found)
    ranks = tuple(range(len(found.stages)))
    return PipelinePlan(layers, planner, found.stages, ranks, found.ways, pattern)


def contiguous_pattern(layers: Layers, found: Contiguous) -> Pattern:
    """1F1B* of the stages and the transfers between them. What is made again runs right before
    the backward."""
    forward: list[int] = []
    backward: list[int] = []
    for (i, j), way in zip(found.stages, found.ways, strict=True):
        forward_ns = sum(layers.forward_ns_L[i:j])
        act, grad = layers.transfers_ns_B[j]
        forward += [forward_ns, act]
        backward += [way.load_ns - forward_ns, grad]
    return one_f_one_b_star(forward[:-1], backward[:-1], found.period_ns)
