"""`madpipe`: one rank may run several stages. Never worse than `one-f-one-b`."""

from __future__ import annotations

from collections.abc import Iterator
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
_PARTS = 1000
"""Periods are multiples of so small a part of the least one."""
_POWERS = 32


@dataclass(frozen=True)
class MadPipe(PipelinePlanner):
    """Shilova 2021, chapter 7, with labels in place of a grid: allocations with one special rank,
    the `tries` best of which are scheduled by the integer program, each only below the best so far.

    `grid` rounds labels up to so many parts, 0 for none: then the first phase is a lower bound.
    `options=recompute` lets a stage make inner values of its layers again. It searches smaller
    memories too: over those of `memories` the period never rises with the memory, unless the time
    limit ends a search.
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
        special = _Special(self, task, search, best)
        try:
            special.run()
        except LabelsOverflow:
            special.late = True
        if special.best is None:
            return task.infeasible()
        bound: int | None = layers.least_period_ns
        if not self.grid and special.first_ns != 0:
            # Where no labels are below them, contiguous stages are best.
            bound = special.first_ns
            if least is not None:
                bound = min(least.period_ns, bound or least.period_ns)
        return Planned(special.best, bound, special.late)


class _Special:
    """The best of a plan and of allocations with a special rank, those for less memory too.

    `first_ns` is the least period with labels: None if it is none of the plans', 0 if not known.
    """

    def __init__(
        self,
        planner: MadPipe,
        task: PipelineTask,
        alone: ContiguousSearch,
        best: PipelinePlan | None,
    ):
        self.planner, self.task, self.alone, self.best = planner, task, alone, best
        self.layers = alone.layers
        self.tried: set[SpecialAllocation] = set()
        self.first_ns: int | None = 0
        self.late = False

    @property
    def below_ns(self) -> int | None:
        return None if self.best is None else self.best.period_ns

    def run(self) -> None:
        """Searches the memory, then each of `memories` below it, until no labels promise more:
        less memory has none that more has not. Each search depends on its memory alone, so with
        more memory all that was found for less is found again."""
        grid, task, first = self.planner.grid, self.task, 1
        deadline = 0.0
        with MilpSolver() as solver:
            for memory in memories(self.layers.memory_bytes):
                layers = self.layers.with_memory(memory)
                labels = LabelSearch(layers, grid, task.deadline, self.alone)
                found = labels.least(self.below_ns, first)
                if not self.first_ns:
                    self.first_ns = found
                    first_phase = "finds none" if found is None else f"{found} ns"
                    task.progress(f"madpipe: first phase {first_phase}")
                    deadline = min(task.deadline, monotonic() + self.planner.phase2_s)
                if found is None:
                    return
                first = found
                for allocation in self._allocations(labels, found):
                    self._try(layers, allocation, solver, deadline)

    def _allocations(self, labels: LabelSearch, first_ns: int) -> list[SpecialAllocation]:
        """Allocations that use the special rank more than once; contiguous ones are exact."""
        found: dict[SpecialAllocation, None] = {}
        for above in _ABOVE:
            for allocation in labels.allocations(int(first_ns * above)):
                if len(set(allocation.ranks)) < len(allocation.ranks):
                    found[allocation] = None
            if len(found) >= self.planner.tries:
                break
        return list(found)[: self.planner.tries]

    def _try(
        self, layers: Layers, allocation: SpecialAllocation, solver: MilpSolver, deadline: float
    ) -> None:
        """Takes the allocation if it is better. One that was not with more memory is not."""
        if allocation in self.tried:
            return
        self.tried.add(allocation)
        stages, ranks, ways = allocation.stages, allocation.ranks, allocation.ways
        program = PeriodicProgram(layers, stages, ranks, ways)
        unit = max(1, layers.least_period_ns // _PARTS)
        pattern, decided = program.least(solver, deadline, self.below_ns, unit)
        self.late = self.late or not decided
        if pattern is None:
            return
        plan = PipelinePlan(self.layers, self.task.planner, stages, ranks, ways, pattern)
        if self.best is None or plan.aim_ns < self.best.aim_ns:
            self.task.progress(f"madpipe: period {plan.period_ns} ns, step {plan.aim_ns} ns")
            self.best = plan


def memories(limit_bytes: int | None) -> Iterator[int | None]:
    """A memory, then smaller ones: 1, 1.25, 1.5, 1.75 times a power of two, in GB.

    >>> some = memories(8_500_000_000)
    >>> [next(some) // 10**6 for _ in range(6)]
    [8500, 8000, 7000, 6000, 5000, 4000]
    """
    yield limit_bytes
    if limit_bytes is None:
        return
    for power in range(_POWERS, -_POWERS, -1):
        for parts in (7, 6, 5, 4):
            size = int(parts * 250_000_000 * 2.0**power)
            if 0 < size < limit_bytes:
                yield size


def least_period_bound(layers: Layers, deadline: float) -> int:
    """A lower bound on the period of pipelines with at most one rank of several stages: exact
    labels if they are few, else the load."""
    try:
        found = LabelSearch(without_recompute(layers), 0, deadline).least()
    except LabelsOverflow:
        found = None
    return layers.least_period_ns if found is None else found
