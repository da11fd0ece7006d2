"""`offload-dp`: which saved sets of a chain go to the host, by dynamic programming."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..chains.answer import chain_for, no_chain
from ..chains.chain import Chain
from ..chains.stages import Stage, save_all, stages_of
from ..kit import PlanResult
from ..spelling.options import at_least
from .autoswap import Autoswap, try_scores
from .copies.improve import improve
from .copies.task import CopyPlanner, CopyTask
from .tables.offload_table import Rates, best_sets
from .tflms import Tflms

_SHARES = (1.0, 0.92, 0.84, 0.75)


@dataclass(frozen=True)
class OffloadDp(CopyPlanner):
    """Shilova 2021, Theorem 10 (DYNPROG): what each block saves is moved, or stays; nothing is
    recomputed. Memory and what waits for the link are counted in `slots`. Tried too is what the
    other planners choose that only move, so the plan is slower than none of theirs, if time
    suffices; then single tensors stay where that is faster. O(L slots^3)."""

    name: ClassVar[str] = "offload-dp"
    applicability: ClassVar[str] = "chain, on a target with a link"
    source: ClassVar[str] = "Shilova 2021, Theorem 10"
    slots: int = at_least(2, 40)
    most_stages: int = at_least(3, 60)

    def search_copies(self, task: CopyTask) -> PlanResult:
        order = task.instance.capture
        chain = chain_for(task.instance, self.most_stages)
        if (refusal := no_chain(task.task, chain)) is not None:
            return refusal
        gaps = task.gaps(order)
        task.try_gaps(order, gaps)
        for sent in self._sets(task, chain):
            if task.is_best_possible or task.late:
                break
            chosen = [gap for gap in gaps if gap.anode in sent]
            task.try_gaps(order, chosen)
            task.try_gaps(order, [*chosen, *(gap for gap in gaps if gap.anode not in sent)])
        for turns in task.thresholds(order):
            if task.is_best_possible or task.late:
                break
            task.try_gaps(order, turns)
        if not task.is_best_possible:
            try_scores(task, Autoswap().points)
            Tflms().try_pairs(task)
        improve(task, recompute=False)
        return task.answer()

    def _sets(self, task: CopyTask, chain: Chain) -> Iterator[set[int]]:
        """The aNodes to move, by the tables for several amounts of memory."""
        options = [save_all(chain, i) for i in range(len(chain))]
        stages: Sequence[Stage] = stages_of(chain, [[option] for option in options])
        inst = task.instance
        room = min(task.task.limit_bytes, inst.peak(inst.capture)) - inst.base_bytes
        target = inst.program.target
        rates = Rates(
            (target.d2h_bytes_per_s or 0) / 1e9,
            (target.h2d_bytes_per_s or 0) / 1e9,
            shared=target.shared_bytes_per_s is not None,
        )
        for share in _SHARES:
            for moved in best_sets(
                stages, int(share * room), self.slots, rates, task.task.deadline
            ):
                yield {a for i in moved for a in options[i].kept | chain.cross_N[i]}
