"""The pass runner: costs -> planner -> simulate -> verify -> plan.

No plan leaves it unproven, but for a draft: what is made of that is proven instead. A planner is a
plug-in and is not trusted: one that raises, does not come back, or hands over a plan that is
invalid or too large is reported by name.
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
from ..ir.rewrites.updates import has_updates
from ..ir.wording import worded
from ..planners.auto import Auto
from ..planners.bounds.time_bounds import TimeBounds
from ..planners.contract import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    TimedOut,
    makes_copies,
    uses_homes,
)
from ..planners.isolation.crew import is_foreign, is_portable, run_planner_apart
from ..planners.isolation.endings import (
    Answered,
    Ending,
    Failed,
    NoResult,
    Overdue,
    PlannerRefused,
    Unloadable,
)
from ..planners.offmate.in_backward import for_updates
from ..planners.registry import format_planner
from .budget import Baseline
from .messages.progress import Progress, Say
from .messages.refusal import refusal
from .prove import Prover

if TYPE_CHECKING:
    from ..ir.schedule import Schedule
    from ..planners.contract import Planner, PlanResult

PROOF_S, PROOF_S_A_CNODE = 60.0, 0.02
"""A proof may take the planner's time limit, and at least so many seconds: a quiet machine needs
about 0.7 ms for each cNode, a busy one ten times as long."""

TAIL_S_A_CNODE = 0.003
"""Seconds of proof, code and the check beside eager, for each cNode on a quiet machine."""

GRACE_S = 5.0
"""Seconds past its time limit (and a quarter of it) after which a planner counts as hung."""

LARGE = 20_000
"""cNodes of a graph of which the proof needs the memory that look-ups take."""


@dataclass
class Phases:
    """Says what is being done, and keeps the seconds that each phase took."""

    progress: Progress = None
    seconds: dict[str, float] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.monotonic)

    def left_s(self, limit_s: float, cnodes: int = 0) -> float:
        """Return the seconds of a limit that are left since this was made, without those that the
        proof and the check of a graph of so many cNodes take; a tenth of the limit at least."""
        tail_s = min(TAIL_S_A_CNODE * cnodes, limit_s / 4)
        return max(limit_s / 10, limit_s - tail_s - (time.monotonic() - self._began_s))

    @contextmanager
    def phase(self, name: str, message: str) -> Iterator[None]:
        self.say(message)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def say(self, message: str) -> None:
        if self.said is not None:
            self.said(message)

    @property
    def said(self) -> Say | None:
        """Who is told, if anybody."""
        return self.progress if callable(self.progress) else None


@dataclass(frozen=True)
class Planned:
    """A proven schedule, inside its program, with the proof recorded, and its time and peaks.
    Of a draft neither the proof nor a bound.

    `lower_bound_ns` bounds the time of any plan within the budget, where the planner
    knows one or one was found. `warnings` say where another planner stands in for the one
    asked for, and where solver and checker do not agree on another plan (FB0817).
    """

    program: Program
    schedule: Schedule
    time_ns: int
    peak_bytes: int
    activation_peak_bytes: int
    lower_bound_ns: int | None
    budget: Budget | None
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One planner on one program under one budget: first asked, then held to its word."""

    program: Program
    planner: Planner
    budget: Budget | None
    time_limit_s: float
    phases: Phases
    known_bounds: TimeBounds | None = None
    is_draft: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "planner", for_updates(self.planner, self.program))

    @cached_property
    def bounds(self) -> TimeBounds:
        """Lower bounds of the program: those of the caller, who may have asked for some."""
        return self.known_bounds or TimeBounds(self.program)

    @cached_property
    def name(self) -> str:
        known = is_dataclass(self.planner)
        return format_planner(self.planner) if known else type(self.planner).__name__

    @cached_property
    def prover(self) -> Prover:
        by_size = PROOF_S_A_CNODE * len(self.program.graph.cnodes)
        return Prover(self.program, self.budget, max(self.time_limit_s, PROOF_S, by_size))

    def ask(self, *, keep_on_interrupt: bool = True) -> PlanResult:
        """Return the answer of the planner; FB0460, FB0461 and FB0464 where that is nothing, FB0817
        where there is no plan because solver and checker do not agree on one."""
        with self.phases.phase("plan", f"planning with {self.name}"):
            result = ask(
                self.planner,
                self.name,
                self.program,
                self.budget,
                time_limit_s=self.time_limit_s,
                progress=self.phases.said,
                accept=self.is_valid if self.is_draft else self.prover.holds,
                keep_on_interrupt=keep_on_interrupt,
                bounds=self.bounds,
            )
        if self.disagreements and not isinstance(result, Optimal | Feasible):
            raise FBError(self.disagreements)
        return result

    def is_valid(self, schedule: Schedule) -> bool:
        """Return whether the simulator runs it within the budget."""
        try:
            self.prover.simulate(schedule, self.name)
        except FBError:
            return False
        return True

    @property
    def disagreements(self) -> tuple[Diagnostic, ...]:
        """FB0817 for each schedule so far on which solver and checker do not agree: a fault of
        this package and not of a planner."""
        from ..verifier import Disagreement

        verdicts = (v for v in self.prover.verdicts.values() if isinstance(v, Disagreement))
        return tuple(diagnostic for verdict in verdicts for diagnostic in verdict.diagnostics)

    def prove(self, schedule: Schedule, bound_ns: int | None, name: str) -> Planned:
        """The schedule with its proof; FB0462, FB0463, FB0467, FB0476 and FB0817 where it has none.
        A draft is run by the simulator alone.

        `bound_ns` is what the planner claims that no plan can beat.
        """
        if schedule.has_copies and not makes_copies(self.planner):
            message = f"planner {name} copies to the host and does not say so"
            hint = "use another planner, or give its class the attribute `copies = True`"
            raise FBError(Diagnostic("FB0476", message, hint=hint))
        doing = "running the draft" if self.is_draft else "proving the plan"
        with self.phases.phase("verify", doing):
            trace = self.prover.simulate(schedule, name)
            figures = trace.time_ns, trace.peak_bytes, trace.activation_peak_bytes
            del trace  # of a long plan it takes more memory than the plan
            if self.is_draft:
                return Planned(self.program, schedule, *figures, None, self.budget)
            if len(self.program.graph.cnodes) >= LARGE:
                self.program.graph.forget()
            program = self.prover.prove(schedule, name)
        known_ns = self._bound_ns(schedule)
        # One above the time of the plan is refuted by it.
        held = [b for b in (bound_ns, known_ns) if b is not None and b <= figures[0]]
        bound = max(held, default=None)
        return Planned(program, schedule, *figures, bound, self.budget, self.disagreements)

    def _bound_ns(self, schedule: Schedule) -> int | None:
        """A lower bound that is found in a tenth of the time that planning has left, if any. `auto`
        has asked for one as long as that could end its search."""
        if (
            self.budget is None
            or isinstance(self.planner, Auto)
            or uses_homes(self.planner)
            or has_updates(self.program)
        ):
            return None
        left_s = self.time_limit_s - self.phases.seconds.get("plan", 0.0)
        with self.phases.phase("plan", "bounding the time of any plan"):
            copies = makes_copies(self.planner) and self.program.target.has_link
            return self.bounds.lower_ns_for(schedule, self.budget, left_s, copies=copies)


def run_planner(
    program: Program,
    planner: Planner,
    budget: Budget | None,
    baseline: Baseline,
    *,
    time_limit_s: float,
    phases: Phases,
    is_draft: bool = False,
) -> Planned:
    """Plans and proves. FB0460 to FB0467 where that fails, naming the planner.

    A draft is valid and within the budget by the simulator. It is for those who make another plan
    of it and prove that one.
    """
    attempt = Attempt(program, planner, budget, time_limit_s, phases, is_draft=is_draft)
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
    message = f"planner {name} found no plan within {float(f'{time_limit_s:.2g}'):g} s"
    return Diagnostic("FB0465", message, hint=worded("give it more time with {time_limit_s}"))


def _fall_back(program: Program, budget: Budget | None, late: Diagnostic) -> PlanResult:
    """Return the answer of `dtr` where a planner ran out of time; `late` where it has no plan
    either."""
    from ..planners.eviction.dtr import Dtr

    result = for_updates(Dtr(rounds=0), program).plan(program, budget)
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


def ask(
    planner: Planner,
    name: str,
    program: Program,
    budget: Budget | None,
    *,
    time_limit_s: float,
    progress: Callable[[str], None] | None,
    accept: Callable[[Schedule], bool],
    keep_on_interrupt: bool = True,
    bounds: TimeBounds | None = None,
) -> PlanResult:
    """Return the answer of the planner, whoever wrote it. FB0460 where it fails, FB0461 where it
    does not come back, FB0464 for what is no result; and what it refuses itself.

    One from another package runs in a process of its own, which is killed when it does not come
    back. One that a process cannot make again (a class of a notebook, say) and those of this
    package run on a thread; `auto` runs here, and shields itself.

    `auto` hands out only a schedule that `accept` holds for, and on Ctrl-C the best that it
    has, unless `keep_on_interrupt` is off; `bounds` save it work.
    """
    if isinstance(planner, Auto):
        return planner.plan(
            program,
            budget,
            time_limit_s=time_limit_s,
            progress=progress,
            accept=accept,
            keep_on_interrupt=keep_on_interrupt,
            bounds=bounds,
        )
    patience_s = time_limit_s * 1.25 + GRACE_S

    def run(*, in_process: bool) -> Ending:
        return run_planner_apart(
            planner,
            program,
            budget,
            time_limit_s=time_limit_s,
            patience_s=patience_s,
            progress=progress,
            in_process=in_process,
        )

    in_process = is_foreign(planner) and is_portable(planner)
    ending = run(in_process=in_process)
    if in_process and isinstance(ending, Unloadable):
        ending = run(in_process=False)
    return _result_of(ending, name, time_limit_s, patience_s)


def _result_of(ending: Ending, name: str, time_limit_s: float, patience_s: float) -> PlanResult:
    match ending:
        case Overdue():
            message = f"planner {name} has not come back {patience_s:.0f} s after it was started"
            hint = f"its time limit was {time_limit_s:g} s; use another planner"
            raise FBError(Diagnostic("FB0461", message, hint=hint))
        case Answered(result):
            return result
        case PlannerRefused(diagnostics, usage):
            raise FBError(diagnostics, usage=usage)
        case Failed(what, where):
            notes = (Note(f"raised in {where}"),) if where else ()
            message = f"planner {name} failed: {what}"
            raise FBError(Diagnostic("FB0460", message, notes=notes, hint="use another planner"))
        case NoResult(what):
            raise FBError(Diagnostic("FB0464", f"planner {name} returned {what}"))
        case Unloadable(reason):
            raise FBError(Diagnostic("FB0460", f"planner {name} failed: {reason}"))
        case _:
            assert_never(ending)
