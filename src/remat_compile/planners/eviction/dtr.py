"""`dtr`: offline dynamic tensor rematerialization, the fallback that always answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..kit import PlanResult, SearchPlanner, Task, TimedOut
from ..spelling.options import at_least
from .search import Search


@dataclass(frozen=True)
class Dtr(SearchPlanner):
    """Kirisame et al. 2021, walked over the captured order with the future known.

    `scope` says what may be computed again: results of the `forward`, or `all` (none:
    both are tried). `rounds` is the number of random restarts (none: by the size of the
    graph), `seed` their seed. `walks` is how many more vary what a walk decides, the order of
    first executions included, where no other meets the budget. Any graph; near-linear time per
    walk.
    """

    name: ClassVar[str] = "dtr"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "Kirisame et al. 2021, offline"
    scope: Literal["forward", "all"] | None = None
    rounds: int | None = at_least(0, None)
    seed: int = 0
    walks: int = at_least(0, 0)

    @property
    def scopes(self) -> tuple[bool, ...]:
        """For each walk in turn: True if results of the backward may be recomputed."""
        return {"forward": (False,), "all": (True,), None: (False, True)}[self.scope]

    def search(self, task: Task) -> PlanResult:
        instance = task.instance
        if instance.peak(instance.capture) <= task.limit_bytes:
            return task.answer(instance.capture)
        search = Search(instance, task.limit_bytes, task.deadline, self.scopes, task.progress)
        search.walks, search.seed = self.walks, self.seed
        search.run(self.rounds, self.seed)
        if search.best is not None and not search.late:
            return task.answer(search.best)
        if search.late:
            schedule = None if search.best is None else task.schedule(search.best)
            return TimedOut(schedule, search.best_ns, instance.base_time_ns)
        return task.infeasible(search.least())
