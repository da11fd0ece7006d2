"""`interleaved`: each rank runs several stages in turn. A baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ....ir.diagnostics import Diagnostic
from ...contract import Infeasible
from ...spelling.options import at_least
from ..contract import PipelinePlanner, PipelineResult, PipelineTask, without_recompute
from ..search.balanced import balanced
from ..search.list_schedule import planned_by_order


@dataclass(frozen=True)
class Interleaved(PipelinePlanner):
    """Narayanan et al. 2021 (Megatron-LM): `chunks` stages of balanced load on each rank, through
    which micro-batches go in groups of as many as there are ranks."""

    name: ClassVar[str] = "interleaved"
    source: ClassVar[str] = "Narayanan et al. 2021"
    chunks: int = at_least(1, 2)

    def search(self, task: PipelineTask) -> PipelineResult:
        layers, p = without_recompute(task.layers), task.layers.ranks
        needed = p * self.chunks
        found = balanced(replace(layers, ranks=needed), fewer=False)
        if found is None:
            message = f"{task.planner} needs {needed} stages, and the model falls into "
            message += f"{len(layers.cuts) - 1} at most"
            hint = "give fewer ranks or chunks"
            return Infeasible(None, 0, Diagnostic("FB0734", message, hint=hint))

        def ahead(rank: int) -> int:
            more = p - rank - 1
            return 2 * more + (self.chunks - 1) * p if self.chunks > 1 else more

        return planned_by_order(task, layers, found[1], ahead, group=p)
