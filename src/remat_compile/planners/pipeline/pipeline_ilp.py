"""`pipeline-ilp`: any allocation, each scheduled by the integer program. Exact on short chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..solvers import MilpSolver
from .contract import (
    PipelinePlan,
    PipelinePlanner,
    PipelineResult,
    PipelineTask,
    Planned,
    plain_ways,
    without_recompute,
)
from .layers import Layers, Range
from .one_f_one_b import contiguous_plan
from .search.contiguous import ContiguousSearch
from .search.periodic_program import PeriodicProgram

Allocation = tuple[tuple[Range, ...], tuple[int, ...]]


@dataclass(frozen=True)
class PipelineIlp(PipelinePlanner):
    """Shilova 2021, chapter 6, one allocation after another: all ways to give the parts between
    cuts to ranks, ranks renamed left out, those whose load alone is too long left out. To the
    nanosecond for periods below 4000 ns, else for durations rounded up to 2000 parts of it."""

    name: ClassVar[str] = "pipeline-ilp"
    source: ClassVar[str] = "Shilova 2021, chapter 6"

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = without_recompute(task.layers)
        contiguous = ContiguousSearch(layers).least()
        best: PipelinePlan | None = None
        if contiguous is not None:
            best = contiguous_plan(layers, task.planner, contiguous)
        late = False
        with MilpSolver() as solver:
            for stages, ranks in allocations(layers):
                if task.left_s <= 0:
                    late = True
                    break
                ways = plain_ways(layers, stages)
                program = PeriodicProgram(layers, stages, ranks, ways)
                below = None if best is None else best.period_ns
                pattern, decided = program.least(solver, task.deadline, below)
                late = late or not decided
                if pattern is not None:
                    best = PipelinePlan(layers, task.planner, stages, ranks, ways, pattern)
        if best is None:
            return task.infeasible()
        is_exact = not late and PeriodicProgram.is_exact(best.period_ns)
        return Planned(best, best.period_ns if is_exact else layers.least_period_ns, late)


def allocations(layers: Layers) -> Iterator[Allocation]:
    """All allocations up to the names of ranks; contiguous ones come out too."""
    cuts = layers.cuts

    def extend(k: int, stages: tuple[Range, ...], ranks: tuple[int, ...]) -> Iterator[Allocation]:
        if k == len(cuts) - 1:
            yield stages, ranks
            return
        for rank in range(min(layers.ranks, max(ranks, default=-1) + 2)):
            if ranks and ranks[-1] == rank:
                yield from extend(k + 1, (*stages[:-1], (stages[-1][0], cuts[k + 1])), ranks)
            else:
                yield from extend(k + 1, (*stages, (cuts[k], cuts[k + 1])), (*ranks, rank))

    return extend(0, (), ())
