"""`pofo`: recompute and offload decided together on a chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..chains.chain import Chain
from ..chains.stages import BlockOption, save_all
from ..kit import PlanResult
from ..spelling.options import at_least
from .copies.task import CopyPlanner, CopyTask
from .tables.joint_answer import answer_jointly


@dataclass(frozen=True)
class Pofo(CopyPlanner):
    """Shilova 2021, Theorem 12: each block keeps all that its backward reads, or nothing but its
    input, and what is kept may wait on the host. Memory is counted in `slots`; longer chains than
    `most_stages` are joined. O(L^2 slots^3 + L^3 slots^2) for L blocks."""

    name: ClassVar[str] = "pofo"
    applicability: ClassVar[str] = "chain, on a target with a link"
    source: ClassVar[str] = "Shilova 2021, Theorem 12"
    slots: int = at_least(2, 30)
    most_stages: int = at_least(3, 40)

    def search_copies(self, task: CopyTask) -> PlanResult:
        return answer_jointly(task, _keep_all, slots=self.slots, most_stages=self.most_stages)


def _keep_all(chain: Chain, i: int) -> list[BlockOption]:
    return [save_all(chain, i)]
