"""`rk-pofo`: `pofo` with several options for each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..chains.block_options import block_instance, option_of
from ..chains.chain import Chain
from ..chains.stages import BlockOption, save_all
from ..instance import Instance, Order
from ..kit import PlanResult
from ..spelling.options import at_least
from .copies.task import CopyPlanner, CopyTask
from .tables.joint_answer import answer_jointly

_SHARES = (0.35, 0.7, 1.0)
"""The share of a block's recomputable bytes, cheapest first."""


@dataclass(frozen=True)
class RkPofo(CopyPlanner):
    """Ours: the program of `pofo` over blocks that may also save only a part of what their
    backward reads, and make the cheapest rest again (Zhao 2024, 2.5, joined with Shilova 2021,
    chapter 4). What waits on the host is then the saved part."""

    name: ClassVar[str] = "rk-pofo"
    applicability: ClassVar[str] = "chain, on a target with a link"
    source: ClassVar[str] = "ours: Shilova 2021, chapter 4, with the options of Zhao 2024, 2.5"
    slots: int = at_least(2, 24)
    most_stages: int = at_least(3, 24)

    def search_copies(self, task: CopyTask) -> PlanResult:
        return answer_jointly(task, _options, slots=self.slots, most_stages=self.most_stages)


def _options(chain: Chain, i: int) -> list[BlockOption]:
    """Saving all, and saving all but what is cheapest to make again; for the loss, one."""
    everything = save_all(chain, i)
    if i == len(chain) - 1:
        return [everything]
    block = block_instance(chain, i)
    fewer = (option_of(chain, i, dropping(block, share)) for share in _SHARES)
    by_kept = {everything.kept: everything}
    for option in fewer:
        by_kept.setdefault(option.kept, option)
    return [*by_kept.values()]


def dropping(block: Instance, share: float) -> Order:
    """The block's step with its cheapest cNodes, by time for a byte, run again behind the loss."""
    size = [sum(block.size_A[a] for a in made) for made in block.rewrites_C]
    again = [c for c in range(block.loss) if block.makable_C[c] and size[c]]
    again.sort(key=lambda c: (block.retime_C[c] / size[c], c))
    room = share * sum(size[c] for c in again)
    chosen: list[int] = []
    for c in again:
        if size[c] <= room:
            room -= size[c]
            chosen.append(c)
    first = [*range(block.loss), block.loss]
    return [*first, *sorted(chosen), *range(block.loss + 1, len(block.names_C))]
