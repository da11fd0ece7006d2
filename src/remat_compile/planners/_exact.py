"""What the planners that call a solver share: where they begin, and how they answer."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from ..ir.diagnostics import Diagnostic
from ..ir.liveness import lower_bound_bytes
from ._compact_solve import CompactAnswer, OnOrder, saved_bytes_of
from ._instance import Instance, Order
from ._results import Task
from ._search import Search
from .contract import Feasible, Infeasible, Optimal, PlanResult, Progress, TimedOut

__all__ = ["conclude", "quick_order", "teller", "too_large"]

_ROUNDS = 20
_LEAST_S = 10.0
"""Looking for the least budget of a refusal may take so long."""


def quick_order(
    instance: Instance,
    limit_bytes: int,
    deadline: float,
    *,
    backward: bool = False,
    saved_bytes: int | None = None,
) -> Order | None:
    """An order under the budget from a few walks, to begin from; None without one."""
    search = Search(instance, limit_bytes, deadline, (False, True) if backward else (False,))
    search.run(_ROUNDS if len(instance.names_C) <= 2000 else 0, 0)
    best = search.best
    if best is None or saved_bytes is None or saved_bytes_of(instance, best) <= saved_bytes:
        return best
    return None


def teller(name: str, instance: Instance, progress: Progress | None) -> OnOrder:
    """Tells people of each better order."""
    base = instance.base_time_ns or 1

    def tell(_: Order, time_ns: int) -> None:
        if progress is not None:
            progress(f"{name}: {time_ns / base:.4f} of the time without budget")

    return tell


def conclude(task: Task, found: CompactAnswer, saved_bytes: int | None = None) -> PlanResult:
    """The answer of a solver as a result.

    Where the family of its orders has none under the budget, an order that walks find is
    the answer, with the trivial bound; where they find none either, the refusal names the
    least budget that they reach.
    """
    if found.order is None and found.status != "infeasible":
        return TimedOut(None, 0, found.bound_ns)
    if found.order is None:
        return _refused(task, saved_bytes)
    schedule = task.schedule(found.order)
    if found.time_ns <= found.bound_ns:
        return Optimal(schedule, found.time_ns, found.time_ns)
    gap = found.time_ns / found.bound_ns - 1 if found.bound_ns else 0.0
    return Feasible(schedule, found.time_ns, found.bound_ns, gap)


def _refused(task: Task, saved_bytes: int | None) -> PlanResult:
    least = _Least(task).order()
    small = task.instance.peak(least) <= task.limit_bytes
    if small and (saved_bytes is None or saved_bytes_of(task.instance, least) <= saved_bytes):
        return task.answer(least)
    return task.infeasible(None if small else least)


@dataclass(frozen=True)
class _Least:
    task: Task

    def order(self) -> Order:
        """The order of least memory that walks reach."""
        instance = self.task.instance
        return Search(instance, self.task.limit_bytes, monotonic() + _LEAST_S).least()


def too_large(task: Task, most: int, hint: str) -> Infeasible | None:
    """FB0409 for a graph of more than `most` cNodes; None for a smaller one."""
    size = len(task.instance.names_C)
    if size <= most:
        return None
    floor, _ = lower_bound_bytes(task.program, task.instance.kind)
    message = f"{task.planner} plans graphs of at most {most} cNodes, and this one has {size}"
    return Infeasible(None, floor, Diagnostic("FB0409", message, hint=hint))
