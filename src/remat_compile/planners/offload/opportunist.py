"""`opportunist`: blocks save and go to the host whenever the link is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..chains.answer import Slots, chain_for, no_chain, order_of
from ..chains.choices import Choice, Save, Split, operations
from ..chains.recurrences.persistent import DeadlinePassed, Persistent
from ..chains.stages import Stage, save_all, stages_of
from ..kit import PlanResult
from ..spelling.options import at_least
from .copies.place import copy_ns
from .copies.task import CopyPlanner, CopyTask

_SHARES = (1.0, 0.8, 0.6, 0.4)


@dataclass(frozen=True)
class Opportunist(CopyPlanner):
    """Shilova 2021, section 4.3: the first block saves all and is moved; while the link is busy the
    next ones save nothing, then one saves again, and so on. What lies between two of them is
    planned as `rotor` does, for several amounts of memory. O(N^3 slots)."""

    name: ClassVar[str] = "opportunist"
    applicability: ClassVar[str] = "chain, on a target with a link"
    source: ClassVar[str] = "Shilova 2021, section 4.3"
    slots: int = at_least(1, 200)

    def search_copies(self, task: CopyTask) -> PlanResult:
        inst = task.instance
        chain = chain_for(inst)
        if (refusal := no_chain(task.task, chain)) is not None:
            return refusal
        task.try_gaps(inst.capture, [])
        if task.best is not None:
            return task.answer()
        stages = stages_of(chain, [[save_all(chain, i)] for i in range(len(chain))])
        scale = Slots.of(stages, task.task.limit_bytes - inst.base_bytes, self.slots)
        try:
            table = Persistent(scale.stages, scale.slot, scale.top, task.task.deadline)
        except DeadlinePassed:
            return task.answer()
        saving = _saving(task, scale.stages)
        for share in _SHARES:
            order = order_of(
                operations(
                    scale.stages,
                    lambda s, t, memory: _choose(table, saving, s, t, memory),
                    int(share * scale.fits),
                )
            )
            task.try_gaps(order, task.gaps(order))
        return task.answer()


def _saving(task: CopyTask, stages: Sequence[Stage]) -> list[int]:
    """The stages that save, and the loss: each when the link has moved what the one before
    saved."""
    target = task.instance.program.target
    saving: list[int] = []
    now_ns = free_ns = 0
    for i, stage in enumerate(stages):
        if now_ns >= free_ns or i == len(stages) - 1:
            saving.append(i)
            moved = stage.options[0].hold_bytes
            now_ns += stage.options[0].first.time_ns
            free_ns = now_ns + copy_ns(moved, target.d2h_bytes_per_s, target)
        else:
            now_ns += stage.skim_first.time_ns
    return saving


def _choose(
    table: Persistent, saving: Sequence[int], s: int, t: int, memory: int
) -> tuple[Choice, int]:
    """In the first pass what `saving` says; else what fits of the best of the table."""
    if t == saving[-1]:
        if s in saving:
            return Save(0), memory
        return Split(next(i for i in saving if i > s)), memory
    for slots in range(memory, table.top + 1):
        if table.table[s][t - s, slots] != float("inf"):
            return table.choose(s, t, slots)
    return (Save(0) if s == t else Split(t)), memory
