"""The pass runner: costs -> planner -> simulate -> verify -> plan.

No plan leaves it unproven. A planner is a plug-in and is not trusted: one that raises,
does not come back, or hands over a plan that is invalid or too large is reported by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, assert_never

from ..ir.diagnostics import Diagnostic, FBError, Note
from ..ir.program import Budget, Program
from ..ir.wording import worded
from ..planners.contract import Feasible, Infeasible, NotApplicable, Optimal, TimedOut
from ..planners.registry import format_planner
from .ask import ask
from .budget import Baseline
from .prove import Prover
from .refusal import refusal

if TYPE_CHECKING:
    from ..ir.schedule import Schedule
    from ..ir.semantics.simulate import Trace
    from ..planners.contract import Planner, PlanResult

__all__ = ["Attempt", "Phases", "Planned", "run_planner", "schedule_of"]

PROOF_S = 60.0
"""A proof may take the planner's time limit, and at least so many seconds."""


@dataclass
class Phases:
    """Says what is being done, and keeps the seconds that each phase took."""

    progress: Callable[[str], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str, message: str) -> Iterator[None]:
        self.say(message)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def say(self, message: str) -> None:
        if self.progress is not None:
            self.progress(message)


@dataclass(frozen=True)
class Planned:
    """A proven schedule, inside its program, with the proof recorded.

    `lower_bound_ns` bounds the time of any plan within the budget, where the planner
    knows one. `warnings` say where another planner stands in for the one asked for.
    """

    program: Program
    schedule: Schedule
    trace: Trace
    lower_bound_ns: int | None
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One planner on one program under one budget: first asked, then held to its word."""

    program: Program
    planner: Planner
    budget: Budget | None
    time_limit_s: float
    phases: Phases

    @cached_property
    def name(self) -> str:
        known = is_dataclass(self.planner)
        return format_planner(self.planner) if known else type(self.planner).__name__

    @cached_property
    def prover(self) -> Prover:
        return Prover(self.program, self.budget, max(self.time_limit_s, PROOF_S))

    def ask(self, *, keep_on_interrupt: bool = True) -> PlanResult:
        """What the planner answers; FB0460, FB0461 and FB0464 where that is nothing."""
        with self.phases.phase("plan", f"planning with {self.name}"):
            return ask(
                self.planner,
                self.name,
                self.program,
                self.budget,
                time_limit_s=self.time_limit_s,
                progress=self.phases.progress,
                accept=self.prover.holds,
                keep_on_interrupt=keep_on_interrupt,
            )

    def prove(self, schedule: Schedule, bound_ns: int | None, name: str) -> Planned:
        """The schedule with its proof; FB0462, FB0463 and FB0467 where it has none."""
        with self.phases.phase("verify", "proving the plan"):
            trace = self.prover.simulate(schedule, name)
            program = self.prover.prove(schedule, name)
        if bound_ns is not None and bound_ns > trace.time_ns:
            bound_ns = None  # the plan itself refutes it
        return Planned(program, schedule, trace, bound_ns)


def run_planner(
    program: Program,
    planner: Planner,
    budget: Budget | None,
    baseline: Baseline,
    *,
    time_limit_s: float,
    phases: Phases,
) -> Planned:
    """Plans and proves. FB0460 to FB0467 where that fails, naming the planner."""
    attempt = Attempt(program, planner, budget, time_limit_s, phases)
    result = attempt.ask()
    if isinstance(result, TimedOut) and result.schedule is None:
        late = _late(attempt.name, time_limit_s)
        phases.say(f"{late.message}; dtr stands in for it")
        with phases.phase("plan", "planning with dtr"):
            result = _fall_back(program, budget, late)
        schedule, bound = schedule_of(result, attempt, baseline)
        return replace(attempt.prove(schedule, bound, "dtr"), warnings=(late,))
    schedule, bound = schedule_of(result, attempt, baseline)
    return attempt.prove(schedule, bound, attempt.name)


def _late(name: str, time_limit_s: float) -> Diagnostic:
    message = f"planner {name} found no plan within {time_limit_s:g} s"
    return Diagnostic("FB0465", message, hint=worded("give it more time with {time_limit_s}"))


def _fall_back(program: Program, budget: Budget | None, late: Diagnostic) -> PlanResult:
    """What `dtr` answers where a planner ran out of time; `late` where it has no plan either."""
    from ..planners.dtr import Dtr

    result = Dtr(rounds=0).plan(program, budget)
    if isinstance(result, Infeasible):
        notes = (Note(result.why.message), *result.why.notes)
        raise FBError(replace(late, notes=notes))
    return result


def schedule_of(
    result: PlanResult, attempt: Attempt, baseline: Baseline
) -> tuple[Schedule, int | None]:
    """The schedule of a result and its lower bound. FB0464 to FB0466 where it has none."""
    name = attempt.name
    match result:
        case Optimal() | Feasible():
            return result.schedule, result.lower_bound_ns
        case TimedOut(schedule=None):
            raise FBError(Diagnostic("FB0465", f"planner {name} found no plan in its time"))
        case TimedOut(schedule, _, bound):
            assert schedule is not None
            return schedule, bound
        case NotApplicable(why):
            raise FBError(why)
        case Infeasible():
            planner, program, budget = attempt.planner, attempt.program, attempt.budget
            raise FBError(refusal(result, planner, name, program, budget, baseline))
        case _:
            if TYPE_CHECKING:
                assert_never(result)
            what = type(result).__name__
            raise FBError(
                Diagnostic("FB0464", f"planner {name} returned {what}, which is not a result")
            )
