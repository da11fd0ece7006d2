"""`periodic`: equal segments of the forward, each recomputed once in the backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from ..eviction.segments import Weight, cut_forward, forward_cnodes, segment_order
from ..kit import Instance, Order, PlanResult, SearchPlanner, Task
from ..spelling.options import at_least


@dataclass(frozen=True)
class Periodic(SearchPlanner):
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

    def search(self, task: Task) -> PlanResult:
        return task.best_of(self._orders(task.instance))

    def _orders(self, instance: Instance) -> Iterator[Order]:
        most = 2 * isqrt(len(forward_cnodes(instance))) + 1
        counts = range(1, most + 1) if self.segments is None else [self.segments]
        ways: tuple[Weight, ...] = ("count", "memory") if self.by is None else (self.by,)
        for count in counts:
            for by in ways:
                yield segment_order(instance, cut_forward(instance, count, by))
