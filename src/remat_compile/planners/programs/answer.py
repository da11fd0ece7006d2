"""What the planners that call a solver share: where they begin, and how they answer."""

from __future__ import annotations

from time import monotonic

from ...ir.diagnostics import Diagnostic
from ..contract import NotApplicable, PlanResult, Progress, TimedOut
from ..eviction.search import Search
from ..instance import Instance, Order
from ..results import Task
from .solve_compact import CompactAnswer, OnOrder, saved_bytes_of

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
    return task.answer(found.order, found.bound_ns)


def _refused(task: Task, saved_bytes: int | None) -> PlanResult:
    inst, limit = task.instance, task.limit_bytes
    until = monotonic() + _LEAST_S
    walked = quick_order(inst, limit, until, backward=True, saved_bytes=saved_bytes)
    if walked is not None:
        return task.answer(walked)
    least = Search(inst, limit, until).least()
    # With a bound on what is saved, it may be that which has no plan.
    return task.infeasible(least if inst.peak(least) > limit else None)


def too_large(task: Task, most: int, hint: str) -> NotApplicable | None:
    """FB0409 for a graph of more than `most` cNodes; None for a smaller one."""
    size = len(task.instance.names_C)
    if size <= most:
        return None
    message = f"{task.planner} plans graphs of at most {most} cNodes, and this one has {size}"
    return NotApplicable(Diagnostic("FB0409", message, hint=hint))
