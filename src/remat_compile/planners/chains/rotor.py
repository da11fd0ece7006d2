"""`rotor`: the optimal persistent schedule of a chain of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..kit import NotApplicable, PlanResult, SearchPlanner, Task
from ..spelling.options import at_least
from .answer import persistent_answer, saving_stages


@dataclass(frozen=True)
class Rotor(SearchPlanner):
    """Shilova 2021, Theorem 6: each block of the chain keeps all that its backward reads, or
    nothing but its input.

    Sizes are counted in `slots` memory slots, rounded up. O(N^3 slots) for N blocks.
    """

    name: ClassVar[str] = "rotor"
    applicability: ClassVar[str] = "chain"
    source: ClassVar[str] = "Shilova 2021, Theorem 6"
    slots: int = at_least(1, 500)

    def search(self, task: Task) -> PlanResult:
        stages = saving_stages(task)
        if isinstance(stages, NotApplicable):
            return stages
        return persistent_answer(task, stages, self.slots)
