"""`zero-infinity`: all parameters and gradients at home on the host, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.rewrites.updates import has_updates
from ..eviction.dtr import Dtr
from ..kit import PlanResult, SearchPlanner, Task
from .homes.place import Placement, everything
from .homes.search import HomesTask
from .offmate import need_link, renamed
from .updates_search import UpdatesTask


@dataclass(frozen=True)
class ZeroInfinity(SearchPlanner):
    """Rajbhandari 2021: each parameter comes before each use and is freed behind it, each gradient
    leaves behind its writer. An optimizer updates on the host. Activations as `dtr` has them, with
    all room that is left."""

    name: ClassVar[str] = "zero-infinity"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Rajbhandari 2021"
    copies: ClassVar[bool] = True
    homes: ClassVar[bool] = True
    updates: ClassVar[bool] = True

    def search(self, task: Task) -> PlanResult:
        """FB0473 for a target without a link."""
        need_link(task)
        of = Dtr(rounds=0)
        if task.budget is None or task.budget.kind == "activation":
            return renamed(of, task)
        if has_updates(task.program):
            steps = UpdatesTask(task)
            steps.first_fits(steps.orders(of), "host-dropped")
            return steps.answer()
        homes = HomesTask(task)
        for order in homes.orders(of):
            view = homes.view(order)
            homes.take(Placement(view, task.limit_bytes, everything(view)))
            if homes.best is not None:
                break
        return homes.answer()
