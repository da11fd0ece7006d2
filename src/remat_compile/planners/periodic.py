"""`periodic`: equal segments of the forward, each recomputed once in the backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt
from time import monotonic
from typing import ClassVar

from .eviction.segments import Weight, cut_forward, forward_cnodes, segment_order
from .kit import (
    Budget,
    Instance,
    Order,
    PlanResult,
    Program,
    Progress,
    Task,
    TimedOut,
    checked,
    format_planner,
)
from .spelling.options import at_least

__all__ = ["Periodic", "best_of"]


@dataclass(frozen=True)
class Periodic:
    """Shilova 2021, section 2.1: `segments` equal segments, what crosses them kept.

    Without `segments`, each number from 1 to twice the square root of the number of
    forward cNodes (as S 2.4 does) is tried, and the fastest under the budget taken.
    `by` says what is equal: the number of cNodes, or the bytes they write (none: both).
    """

    name: ClassVar[str] = "periodic"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "Shilova 2021, 2.1"
    segments: int | None = at_least(1, None)
    by: Weight | None = None

    def __post_init__(self) -> None:
        checked(self)

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        task = Task.of(program, budget, format_planner(self), monotonic() + time_limit_s)
        return best_of(task, self._orders(task.instance))

    def _orders(self, instance: Instance) -> Iterator[Order]:
        most = 2 * isqrt(len(forward_cnodes(instance))) + 1
        counts = range(1, most + 1) if self.segments is None else [self.segments]
        ways: tuple[Weight, ...] = ("count", "memory") if self.by is None else (self.by,)
        for count in counts:
            for by in ways:
                yield segment_order(instance, cut_forward(instance, count, by))


def best_of(task: Task, orders: Iterable[Order]) -> PlanResult:
    """The fastest of `orders` under the budget; the least peak where none is."""
    instance = task.instance
    limit = task.limit_bytes
    best: Order | None = None
    least: Order | None = None
    best_ns = least_bytes = 0
    late = False
    for order in orders:
        peak, time_ns = instance.peak(order), instance.time_ns(order)
        if peak <= limit and (best is None or time_ns < best_ns):
            best, best_ns = order, time_ns
        if least is None or peak < least_bytes:
            least, least_bytes = order, peak
        late = monotonic() > task.deadline
        if late:
            break
    if best is not None:
        return task.answer(best)
    if late:
        return TimedOut(None, 0, instance.base_time_ns)
    return task.infeasible(least)
