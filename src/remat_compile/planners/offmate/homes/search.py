"""The fastest schedule with parameters and gradients on the host, over orders of other planners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

from ....ir.analysis.liveness import floor_bytes
from ....ir.diagnostics import Diagnostic, Note
from ....ir.program import Budget
from ....ir.schedule import Compute, Free, Schedule
from ....ir.semantics.simulate import Trace, simulate
from ....ir.wording import worded
from ...contract import Feasible, Infeasible, Optimal, Planner, PlanResult, TimedOut
from ...instance import Instance, Order
from ...results import Task
from ...solvers import MilpSolver
from .movable import MovableOrder, movable_names
from .place import Choice, Placement, everything, refilled, repaired
from .program import HomesProgram

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
"""Shares of the bytes that activations may take, which other planners are asked to stay within."""
_PROGRAM_S = 10.0


@dataclass
class HomesTask:
    """A task with the budget of the device, and the best schedule so far."""

    task: Task
    acts: Instance = field(init=False)
    best: tuple[Schedule, Trace] | None = None
    least: Trace | None = None
    host_bytes: int | None = None
    """The least on the host of a schedule that fits otherwise, where the host is too small."""

    def __post_init__(self) -> None:
        self.acts = Instance.of(self.task.program, "activation")

    @property
    def late(self) -> bool:
        return monotonic() > self.task.deadline

    @property
    def is_best_possible(self) -> bool:
        """True if nothing is recomputed and nothing waits."""
        return self.best is not None and self.best[1].time_ns <= self.acts.base_time_ns

    def view(self, order: Order) -> MovableOrder:
        return MovableOrder.of(self.acts, order)

    def take(self, placement: Placement) -> None:
        """Takes in a placement's schedule, if it is within all limits and the fastest so far."""
        schedule = placement.schedule(self.acts, self.task.planner)
        trace = simulate(self.task.program, schedule)
        host = self.task.program.target.host_bytes
        if host is not None and trace.host_peak_bytes > host:
            if trace.peak_bytes <= self.task.limit_bytes:
                self.host_bytes = min(
                    self.host_bytes or trace.host_peak_bytes, trace.host_peak_bytes
                )
            return
        if self.least is None or trace.peak_bytes < self.least.peak_bytes:
            self.least = trace
        if trace.peak_bytes > self.task.limit_bytes:
            return
        if self.best is None or trace.time_ns < self.best[1].time_ns:
            self.best = schedule, trace

    def try_order(self, order: Order, solver: MilpSolver) -> None:
        """The answers of the linear program for an order, of dropping as needed, and of all on the
        host."""
        view, limit = self.view(order), self.task.limit_bytes
        choices: list[Choice | None] = [Choice(), everything(view)]
        if not self.late:
            left = min(_PROGRAM_S, self.task.left_s)
            choices.append(HomesProgram(view, limit).solve(solver, left))
        for choice in choices:
            if choice is not None and not self.is_best_possible:
                placement = repaired(view, limit, choice)
                self.take(placement)
                if placement.fits and not self.late:
                    self.take(refilled(view, limit, placement))

    def orders(self, of: Planner) -> Iterator[Order]:
        """The captured order, that of another planner with nothing moved, and its orders under
        several budgets of activations."""
        capture = self.acts.capture
        yield capture
        view = self.view(capture)
        most = min(self.task.limit_bytes - view.fixed_bytes, max(view.acts_bytes))
        caps = [Budget(int(share * most), "activation") for share in _SHARES]
        seen = {tuple(capture)}
        for k, budget in enumerate([Budget(self.task.limit_bytes), *caps]):
            if self.late or self.is_best_possible or budget.bytes <= 0:
                return
            limit_s = self.task.left_s / (len(caps) - k + 3)
            result = of.plan(self.task.program, budget, time_limit_s=limit_s)
            if k == 1 and isinstance(result, Infeasible) and result.min_budget is not None:
                result = of.plan(self.task.program, result.min_budget, time_limit_s=limit_s)
            order = self._order_of(result)
            if order is None and k:
                return
            if order is not None and tuple(order) not in seen:
                seen.add(tuple(order))
                yield order

    def _order_of(self, result: PlanResult) -> Order | None:
        """The order of a plan that only computes and frees."""
        if not isinstance(result, Optimal | Feasible | TimedOut) or result.schedule is None:
            return None
        steps = result.schedule.steps
        if not all(isinstance(step, Compute | Free) for step in steps):
            return None
        index = {name: c for c, name in enumerate(self.acts.names_C)}
        return [index[step.cnode] for step in steps if isinstance(step, Compute)]

    def answer(self) -> PlanResult:
        """The fastest schedule; else what the least would take."""
        base_ns = self.acts.base_time_ns
        if self.best is not None:
            schedule, trace = self.best
            if trace.time_ns <= base_ns:
                return Optimal(schedule, trace.time_ns, trace.time_ns)
            return Feasible(schedule, trace.time_ns, base_ns)
        if self.late:
            return TimedOut(None, 0, base_ns)
        return self.infeasible()

    def infeasible(self) -> Infeasible:
        """Refuses the budget, with the least that was found; FB0475 where the host is what is too
        small."""
        task = self.task
        floor, where = floor_bytes(task.program, homes=movable_names(task.program))
        reached = None if self.least is None else Budget(self.least.peak_bytes)
        found = "" if reached is None else f"; the least it found is {reached.bytes} bytes"
        message = (
            f"{task.planner} found no plan under the budget of {task.limit_bytes} bytes{found}"
        )
        note = f"no plan of any planner needs less than {floor} bytes: {where} works on so much"
        hint = f"give at least {reached.bytes} bytes" if reached else "give more bytes"
        if self.host_bytes is None:
            why = Diagnostic("FB0407", message, notes=(Note(note),), hint=hint)
            return Infeasible(reached, floor, why, names_both=True)
        host = task.program.target.host_bytes
        message = (
            f"{task.planner} found no plan with {host} bytes on the host; it would "
            f"with {self.host_bytes}"
        )
        hint = worded("give {host_budget} or more", host_budget=f"{self.host_bytes}B")
        why = Diagnostic("FB0475", message, notes=(Note(note),), hint=hint)
        return Infeasible(reached, floor, why, short_of="host")
