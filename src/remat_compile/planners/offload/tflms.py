"""`tflms`: the largest tensors go to the host, and no computation ever makes room for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from ..instance import Instance
from ..kit import PlanResult
from ..spelling.options import at_least
from .copies.gaps import Gap
from .copies.place import Move, copy_ns
from .copies.task import CopyPlanner, CopyTask


@dataclass(frozen=True)
class Tflms(CopyPlanner):
    """Le et al. 2018 (TFLMS) as Shilova 2021, section 3.4.1, compares it: the `tensors` largest
    ones that wait for longer than `distance` cNodes are moved, each comes back `ahead` cNodes
    before its reader, and its bytes are free once its copy will have ended. What is none is tried
    for powers of two, as users tune it. O(n log n) for each pair."""

    name: ClassVar[str] = "tflms"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Le et al. 2018; Shilova 2021, 3.4.1"
    tensors: int | None = at_least(1, None)
    ahead: int | None = at_least(1, None)
    distance: int = at_least(1, 4)

    def search_copies(self, task: CopyTask) -> PlanResult:
        order = task.instance.capture
        task.try_moves(order, [])
        self.try_pairs(task)
        return task.answer()

    def try_pairs(self, task: CopyTask) -> None:
        """Lets the task try what this planner chooses."""
        inst = task.instance
        order = inst.capture
        far = [gap for gap in task.gaps(order) if gap.back - gap.last > self.distance]
        far.sort(key=lambda gap: (-gap.size_bytes, gap.made))
        for count in [self.tensors] if self.tensors else _doubling(len(far)):
            for ahead in [self.ahead] if self.ahead else _doubling(len(order)):
                if task.late or task.is_best_possible:
                    return
                task.try_moves(order, _moves(inst, far[:count], ahead))


def _doubling(most: int) -> list[int]:
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, 2 * counts[-1]))
    return counts


def _moves(inst: Instance, gaps: Sequence[Gap], ahead: int) -> list[Move]:
    """Each copy out starts when its tensor is made and the link is free; the bytes are given back
    at the first boundary at which it has ended. What would not be gone in time stays."""
    target = inst.program.target
    clock = [0, *accumulate(inst.time_C)]
    busy_ns = 0
    moves = []
    for gap in sorted(gaps, key=lambda gap: (gap.made, gap.anode)):
        begins = max(busy_ns, clock[gap.made + 1])
        ends = begins + copy_ns(gap.size_bytes, target.d2h_bytes_per_s, target)
        issue = max(gap.last + 1, gap.back - ahead)
        free = bisect_left(clock, ends, gap.last + 1)
        if free < issue:
            busy_ns = ends
            moves.append(Move(gap, free, issue))
    return moves
