"""`rotor-floating`: the optimal schedule of a chain of blocks with floating checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..kit import NotApplicable, Order, PlanResult, SearchPlanner, Task, TimedOut
from ..spelling.options import at_least
from .answer import (
    Slots,
    answer_or_refuse,
    falling_orders,
    first_fit,
    least_order,
    persistent_orders,
    saving_stages,
)
from .recurrences.floating import Floating, entries
from .recurrences.persistent import DeadlinePassed
from .stages import Stage

_MOST_ENTRIES = 100_000_000
"""Larger tables (400 MB) are made coarser."""
_LEAST_SLOTS = 20


@dataclass(frozen=True)
class RotorFloating(SearchPlanner):
    """Shilova 2021, Theorem 5: as `rotor`, but a checkpoint may be given up for a later one.

    The better of this program and of `rotor`'s. O(N^4 slots) for N blocks, with fewer
    slots where the table would be too large, and `rotor` alone where 20 are too many.
    """

    name: ClassVar[str] = "rotor-floating"
    applicability: ClassVar[str] = "chain"
    source: ClassVar[str] = "Shilova 2021, Theorem 5"
    slots: int = at_least(1, 500)

    def search(self, task: Task) -> PlanResult:
        stages = saving_stages(task)
        if isinstance(stages, NotApplicable):
            return stages
        best: Order | None = None
        try:
            best = first_fit(task, persistent_orders(task, stages, self.slots))
            if best is not None and task.instance.time_ns(best) == task.instance.base_time_ns:
                return task.answer(best)
            floating = first_fit(task, self._orders(task, stages))
            fitting = [order for order in (best, floating) if order is not None]
            if not fitting:
                fitting = [least_order(task, stages)]
        except DeadlinePassed:
            schedule = None if best is None else task.schedule(best)
            time_ns = 0 if best is None else task.instance.time_ns(best)
            return TimedOut(schedule, time_ns, task.instance.base_time_ns)
        return answer_or_refuse(task, min(fitting, key=task.instance.time_ns))

    def _orders(self, task: Task, stages: Sequence[Stage]) -> Iterator[Order]:
        room_bytes = task.limit_bytes - task.instance.base_bytes
        scale = Slots.of(stages, room_bytes, self.slots)
        if entries(len(stages), scale.top) > _MOST_ENTRIES:
            slots = self.slots * _MOST_ENTRIES // entries(len(stages), scale.top)
            scale = Slots.of(stages, room_bytes, max(1, slots))
            if scale.fits < _LEAST_SLOTS:
                return
        # Moving a checkpoint changes whose generator states are held: all are set aside.
        tokens = sum(s.token_bytes for s in scale.stages)
        plain = [replace(s, token_bytes=0) for s in scale.stages]
        fits = scale.fits - -(-tokens // scale.slot)
        if fits <= 0:
            return
        scale = replace(scale, stages=plain, fits=fits)
        table = Floating(plain, scale.slot, scale.top, task.deadline)
        yield from falling_orders(table, scale, table.operations)
