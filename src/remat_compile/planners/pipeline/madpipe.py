"""`madpipe`: one rank may run several stages. Never worse than `one-f-one-b`."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar, Literal

from ..solvers import MilpSolver
from ..spelling.options import at_least
from .contract import (
    PipelinePlan,
    PipelinePlanner,
    PipelineResult,
    PipelineTask,
    Planned,
    without_recompute,
)
from .layers import Layers
from .one_f_one_b import contiguous_plan
from .search.contiguous import ContiguousSearch
from .search.labels import LabelSearch, LabelsOverflow, SpecialAllocation
from .search.periodic_program import PeriodicProgram

_ABOVE = (1.0, 1.02, 1.05, 1.1)
"""Periods, of the least with labels, at which allocations are collected."""


@dataclass(frozen=True)
class MadPipe(PipelinePlanner):
    """Shilova 2021, chapter 7, with labels in place of a grid: allocations with one special rank,
    the `tries` best of which are scheduled by the integer program, each only below the best so far.

    `grid` rounds labels up to so many parts, 0 for none: then the first phase is a lower bound.
    `options=recompute` lets a stage make inner values of its layers again.
    """

    name: ClassVar[str] = "madpipe"
    source: ClassVar[str] = "Shilova 2021, chapter 7"
    grid: int = at_least(0, 40)
    tries: int = at_least(1, 8)
    phase2_s: float = 60.0
    options: Literal["none", "recompute"] = "none"

    @classmethod
    def check_options(cls, **options: object) -> list[tuple[str, str]]:
        limit = options.get("phase2_s", 60.0)
        is_positive = isinstance(limit, float | int) and limit > 0
        return [] if is_positive else [("phase2_s", "must be positive")]

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = task.layers
        if self.options == "none":
            layers = without_recompute(layers)
        search = ContiguousSearch(layers)
        contiguous = least = search.least()
        if least is not None and layers.microbatches is not None:
            contiguous = search.for_step(layers.microbatches)
        best: PipelinePlan | None = None
        if contiguous is not None:
            best = contiguous_plan(layers, task.planner, contiguous)
        below_ns = None if best is None else best.period_ns
        late = False
        bound: int | None = layers.least_period_ns
        labels = LabelSearch(layers, self.grid, task.deadline, search)
        try:
            first = labels.least(below_ns)
            if not self.grid:  # where no labels are below them, contiguous stages are best
                found = (first, least and least.period_ns)
                bound = min((ns for ns in found if ns is not None), default=None)
            task.progress(f"madpipe: first phase {first} ns")
            some = self._allocations(labels, first)
        except LabelsOverflow:
            late, some = True, []
        deadline = min(task.deadline, monotonic() + self.phase2_s)
        with MilpSolver() as solver:
            for allocation in some:
                stages, ranks, ways = allocation.stages, allocation.ranks, allocation.ways
                program = PeriodicProgram(layers, stages, ranks, ways)
                pattern, decided = program.least(solver, deadline, below_ns)
                late = late or not decided
                if pattern is None:
                    continue
                below_ns = pattern.period_ns
                plan = PipelinePlan(layers, task.planner, stages, ranks, ways, pattern)
                task.progress(f"madpipe: period {plan.period_ns} ns, step {plan.aim_ns} ns")
                if best is None or plan.aim_ns < best.aim_ns:
                    best = plan
        if best is None:
            return task.infeasible()
        return Planned(best, bound, late)

    def _allocations(self, labels: LabelSearch, first_ns: int | None) -> list[SpecialAllocation]:
        """Allocations that use the special rank more than once; contiguous ones are exact."""
        if first_ns is None:
            return []
        found: dict[SpecialAllocation, None] = {}
        for above in _ABOVE:
            for allocation in labels.allocations(int(first_ns * above)):
                if len(set(allocation.ranks)) < len(allocation.ranks):
                    found[allocation] = None
            if len(found) >= self.tries:
                break
        return list(found)[: self.tries]


def least_period_bound(layers: Layers, deadline: float) -> int:
    """A lower bound on the period of pipelines with at most one rank of several stages: exact
    labels if they are few, else the load."""
    try:
        found = LabelSearch(without_recompute(layers), 0, deadline).least()
    except LabelsOverflow:
        found = None
    return layers.least_period_ns if found is None else found
