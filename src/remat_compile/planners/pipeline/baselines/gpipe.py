"""`gpipe`: all forwards, then all backwards. A baseline."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from ..contract import (
    PipelinePlan,
    PipelinePlanner,
    PipelineResult,
    PipelineTask,
    Planned,
    plain_ways,
    without_recompute,
)
from ..pattern import Pattern, pseudo_durations
from ..search.balanced import balanced


@dataclass(frozen=True)
class GPipe(PipelinePlanner):
    """Huang et al. 2019: stages of balanced load; each holds all micro-batches of the step at the
    end of the forwards. `period_ns` is that of the forwards and backwards together."""

    name: ClassVar[str] = "gpipe"
    source: ClassVar[str] = "Huang et al. 2019"

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = without_recompute(task.layers)
        microbatches = layers.microbatches or 2 * layers.ranks
        found = balanced(layers, lambda _: microbatches)
        if found is None:
            return task.infeasible()
        _, stages = found
        ranks = tuple(range(len(stages)))
        ways = plain_ways(layers, stages)
        pattern = gpipe_pattern(*pseudo_durations(layers, stages, ways), microbatches)
        plan = PipelinePlan(layers, task.planner, stages, ranks, ways, pattern)
        return Planned(plan, layers.least_period_ns)


def gpipe_pattern(forward: list[int], backward: list[int], microbatches: int) -> Pattern:
    """Forwards one after another at the pace of the slowest, then backwards likewise."""
    starts = (0, *accumulate(forward))
    turn = starts[-1] + (microbatches - 1) * max(forward)
    backs = (0, *accumulate(reversed(backward[1:])))
    return Pattern(
        max(forward),
        starts[:-1],
        tuple(turn + ns for ns in reversed(backs)),
        backward_every_ns=max(backward),
    )
