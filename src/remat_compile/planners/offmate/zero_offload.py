"""`zero-offload` and `paged-states`: one way for all updates of an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.diagnostics import Diagnostic
from ...ir.rewrites.updates import has_updates
from ..contract import NotApplicable
from ..eviction.dtr import Dtr
from ..kit import PlanResult, SearchPlanner, Task
from .offmate import need_link
from .updates_place import Way
from .updates_search import UpdatesTask


@dataclass(frozen=True)
class _OneWay(SearchPlanner):
    """All updates in one way, on the first order of `dtr` that leaves room for it."""

    applicability: ClassVar[str] = "a step with an optimizer, on a target with a link"
    copies: ClassVar[bool] = True
    homes: ClassVar[bool] = True
    updates: ClassVar[bool] = True
    way: ClassVar[Way]

    def search(self, task: Task) -> PlanResult:
        """FB0409 for a step without an optimizer, FB0473 for a target without a link."""
        if not has_updates(task.program):
            message = f"{task.planner} plans the step of an optimizer, and there is none"
            hint = "pass optimizer=, or return one from the factory"
            return NotApplicable(Diagnostic("FB0409", message, hint=hint))
        need_link(task)
        steps = UpdatesTask(task)
        steps.first_fits(steps.orders(Dtr(rounds=0)), self.way)
        return steps.answer()


@dataclass(frozen=True)
class ZeroOffload(_OneWay):
    """Ren et al. 2021: parameters and states are at home on the host, all updates run there.
    Parameters are on the device from their first use to their last."""

    name: ClassVar[str] = "zero-offload"
    source: ClassVar[str] = "Ren et al. 2021"
    way: ClassVar[Way] = "host"


@dataclass(frozen=True)
class PagedStates(_OneWay):
    """Dettmers et al. 2023: states are at home on the host, and come for each update."""

    name: ClassVar[str] = "paged-states"
    source: ClassVar[str] = "Dettmers et al. 2023 (QLoRA), section 3"
    way: ClassVar[Way] = "states"
