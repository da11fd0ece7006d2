"""`interleaved`: each rank runs several stages in turn. A baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ....ir.diagnostics import Diagnostic
from ...contract import Infeasible
from ...spelling.options import at_least
from ..contract import PipelinePlanner, PipelineResult, PipelineTask, without_recompute
from ..search.balanced import balanced
from ..search.list_schedule import PassOf, order_of, planned_by_rule


@dataclass(frozen=True)
class Interleaved(PipelinePlanner):
    """Narayanan et al. 2021 (Megatron-LM): `chunks` stages of balanced load on each rank.

    Micro-batches go in groups of as many as there are ranks through one stage of a rank after the
    other. Rank r begins its first backward behind 2 (P - r - 1) + (chunks - 1) P + 1 forwards.
    """

    name: ClassVar[str] = "interleaved"
    source: ClassVar[str] = "Narayanan et al. 2021"
    chunks: int = at_least(1, 2)

    def search(self, task: PipelineTask) -> PipelineResult:
        layers = without_recompute(task.layers)
        needed = layers.ranks * self.chunks
        found = balanced(replace(layers, ranks=needed), fewer=False)
        if found is None:
            message = f"{task.planner} needs {needed} stages, and the model falls into "
            message += f"{len(layers.cuts) - 1} at most"
            hint = "give fewer ranks or chunks"
            return Infeasible(None, 0, Diagnostic("FB0734", message, hint=hint))
        stages, p = found[1], layers.ranks
        m = layers.microbatches or 2 * p
        ranks = tuple(s % p for s in range(len(stages)))
        orders = [order_of(rank, ranks, p, m) for rank in range(p)]

        def rule(rank: int, ready: Sequence[PassOf], began: Mapping[PassOf, int]) -> PassOf | None:
            at = sum(n for (_, s), n in began.items() if ranks[s] == rank)
            return orders[rank][at] if orders[rank][at] in ready else None

        return planned_by_rule(task, layers, stages, ranks, rule)
