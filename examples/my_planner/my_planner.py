"""`drop-largest`: drop what frees most bytes per nanosecond until the step fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from remat_compile.planners.kit import (
    Instance,
    PlanResult,
    SearchPlanner,
    Task,
    TimedOut,
    order_without,
)


@dataclass(frozen=True)
class DropLargest(SearchPlanner):
    """Drops results of the forward, those first that free most bytes for the time that it
    takes to make them again, as long as that lowers the peak. Each is made again once, in
    the backward. Quadratic time."""

    name: ClassVar[str] = "drop-largest"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "docs/guide/planner_package.md"

    time_power: float = 1.0
    """How much the time counts: 0 looks at bytes alone."""

    @classmethod
    def check_options(cls, time_power: float) -> Iterator[tuple[str, str]]:
        if time_power < 0:
            yield "time_power", f"must be at least 0, not {time_power}"

    def search(self, task: Task) -> PlanResult:
        instance = task.instance
        best, peak = instance.capture, instance.peak(instance.capture)
        dropped: frozenset[int] = frozenset()
        for c in self.candidates(instance):
            if peak <= task.limit_bytes:
                break
            if task.left_s == 0:
                return TimedOut(None, 0, instance.base_time_ns)
            order = order_without(instance, dropped | {c})
            if instance.peak(order) <= peak:
                best, peak, dropped = order, instance.peak(order), dropped | {c}
                task.progress(f"drop-largest: {len(dropped)} dropped, peak {peak} bytes")
        return task.answer(best) if peak <= task.limit_bytes else task.infeasible(best)

    def candidates(self, instance: Instance) -> list[int]:
        """Forward cNodes that may run again, in the order in which they are dropped."""

        def gain(c: int) -> float:
            size = sum(instance.size_A[a] for a in instance.rewrites_C[c])
            return float(size / (instance.retime_C[c] + 1) ** self.time_power)

        forward = [c for c, phase in enumerate(instance.phase_C) if phase == "fwd"]
        return sorted((c for c in forward if instance.makable_C[c]), key=gain, reverse=True)
