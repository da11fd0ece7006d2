"""The start, incumbent and answer that planners with a solver share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from ...ir.diagnostics import Diagnostic
from ..contract import NotApplicable, PlanResult, Progress, TimedOut
from ..eviction.search import Search
from ..instance import Instance, Order
from ..results import Task
from ..solvers.milp import Status

OnOrder = Callable[[Order, int], None]
"""Takes each better order as it is found, with its time in ns."""

_ROUNDS = 20
_LEAST_S = 10.0
"""Looking for the least budget of a refusal may take so long."""


@dataclass(frozen=True)
class ProgramAnswer:
    """The best order and a lower bound on the time of every order of the family.

    `optimal`: both agree (to 1e-6, the solver's tolerance). `feasible`: the time ended
    the search with an order. `infeasible`: the family has none (below the cutoff).
    `unknown`: the time ended the search without one, or the program was too large to be stated.
    All times in ns.
    """

    status: Status
    order: Order | None
    time_ns: int
    bound_ns: int


@dataclass
class Incumbent:
    """The fastest order under the budget that a search has found so far."""

    instance: Instance
    limit_bytes: int
    on_order: OnOrder | None = None
    order: Order | None = None
    time_ns: int = 0

    def offer(self, order: Order) -> None:
        """Takes an order that is under the budget and faster."""
        if self.instance.peak(order) > self.limit_bytes:
            return
        time_ns = self.instance.time_ns(order)
        if self.order is None or time_ns < self.time_ns:
            self.order, self.time_ns = order, time_ns
            if self.on_order is not None:
                self.on_order(order, time_ns)

    def answer(self, status: Status, bound_ns: int) -> ProgramAnswer:
        """`status` is how the search ended; without an order it is `infeasible` or `unknown`."""
        if self.order is None:
            ended: Status = "infeasible" if status == "infeasible" else "unknown"
            return ProgramAnswer(ended, None, 0, bound_ns)
        if status == "optimal":
            return ProgramAnswer("optimal", self.order, self.time_ns, self.time_ns)
        return ProgramAnswer("feasible", self.order, self.time_ns, min(bound_ns, self.time_ns))


def saved_bytes_of(instance: Instance, order: Order) -> int:
    """Bytes alive when the loss starts, as the instance counts them, what the caller
    holds included: what `saved_bytes` bounds."""
    at = order.index(instance.loss)
    own = instance.workspace_C[instance.loss]
    own += sum(instance.size_A[a] for a in instance.writes_C[instance.loss])
    return instance.base_bytes + instance.profile(order)[at] - own


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


def reporter(name: str, instance: Instance, progress: Progress | None) -> OnOrder:
    """Tells people of each better order."""
    base = instance.base_time_ns or 1

    def report(_: Order, time_ns: int) -> None:
        if progress is not None:
            progress(f"{name}: {time_ns / base:.4f} of the time without budget")

    return report


def conclude(task: Task, answer: ProgramAnswer, saved_bytes: int | None = None) -> PlanResult:
    """The answer of a program as a result.

    Where the family of its orders has none under the budget, an order that walks find is
    the answer, with the trivial bound; where they find none either, the refusal names the
    least budget that they reach.
    """
    if answer.order is None and answer.status != "infeasible":
        return TimedOut(None, 0, answer.bound_ns)
    if answer.order is None:
        return _refused(task, saved_bytes)
    return task.answer(answer.order, answer.bound_ns)


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
