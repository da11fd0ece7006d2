"""The pass runner: costs -> planner -> simulate -> verify -> plan.

No plan leaves it unproven. A planner is a plug-in and is not trusted: one that raises,
does not come back, or hands over a plan that is invalid or too large is reported by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, assert_never

from ._ask import ask
from ._budget import Baseline, format_bytes
from ._files import keep_text
from .ir.diagnostics import Diagnostic, FBError, Note
from .ir.program import Budget, Program
from .ir.simulate import simulate
from .planners.contract import Feasible, Infeasible, Optimal, TimedOut
from .planners.registry import format_planner

if TYPE_CHECKING:
    from .ir.schedule import Schedule
    from .ir.simulate import Trace
    from .planners.contract import Planner, PlanResult
    from .verifier import Verdict

__all__ = ["Phases", "Planned", "run_planner"]

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
    name = format_planner(planner) if is_dataclass(planner) else type(planner).__name__
    prover = _Prover(program, budget, max(time_limit_s, PROOF_S))
    warnings: tuple[Diagnostic, ...] = ()
    with phases.phase("plan", f"planning with {name}"):
        result = ask(
            planner,
            name,
            program,
            budget,
            time_limit_s=time_limit_s,
            progress=phases.progress,
            accept=prover.holds,
        )
        if isinstance(result, TimedOut) and result.schedule is None:
            late = _late(name, time_limit_s)
            phases.say(f"{late.message}; dtr stands in for it")
            result = _fall_back(program, budget, late)
            warnings, name = (late,), "dtr"
        schedule, bound = _schedule_of(result, name, budget, baseline)
    with phases.phase("verify", "proving the plan"):
        trace = _simulated(program, schedule, name, budget)
        program = prover.prove(schedule, name)
    return Planned(program, schedule, trace, bound, warnings)


def _late(name: str, time_limit_s: float) -> Diagnostic:
    message = f"planner {name} found no plan within {time_limit_s:g} s"
    return Diagnostic("FB0465", message, hint="give it more time with --time-limit")


def _fall_back(program: Program, budget: Budget | None, late: Diagnostic) -> PlanResult:
    """What `dtr` answers where a planner ran out of time; `late` where it has no plan either."""
    from .planners.dtr import Dtr

    result = Dtr(rounds=0).plan(program, budget)
    if isinstance(result, Infeasible):
        notes = (Note(result.why.message), *result.why.notes)
        raise FBError(replace(late, notes=notes))
    return result


def _schedule_of(
    result: PlanResult,
    name: str,
    budget: Budget | None,
    baseline: Baseline,
) -> tuple[Schedule, int | None]:
    match result:
        case Optimal() | Feasible():
            return result.schedule, result.lower_bound_ns
        case TimedOut(schedule=None):
            raise FBError(Diagnostic("FB0465", f"planner {name} found no plan in its time"))
        case TimedOut(schedule, _, bound):
            assert schedule is not None
            return schedule, bound
        case Infeasible():
            raise FBError(_infeasible(result, name, budget, baseline))
        case _:
            if TYPE_CHECKING:
                assert_never(result)
            what = type(result).__name__
            raise FBError(
                Diagnostic("FB0464", f"planner {name} returned {what}, which is not a result")
            )


def _infeasible(
    result: Infeasible, name: str, budget: Budget | None, baseline: Baseline
) -> Diagnostic:
    kind = "" if budget is None or budget.kind == "device" else " of activations"
    size = "memory" if budget is None else f"{format_bytes(budget.bytes)}{kind}"
    notes = [Note(result.why.message, result.why.span), *result.why.notes]
    said = " ".join(note.message for note in notes)
    hint = result.why.hint
    if (least := result.min_budget) is not None:
        option = "--budget" if least.kind == "device" else "--activation-budget"
        hint = f"give {option} {least.bytes}B or more"
        if str(least.bytes) not in said:
            notes.append(Note(f"the least that a plan was found for is {least.bytes} bytes"))
    if str(result.floor_bytes) not in said:
        notes.append(Note(f"no plan of any planner needs less than {result.floor_bytes} bytes"))
    peak = baseline.activation_peak_bytes if kind else baseline.peak_bytes
    notes.append(Note(f"with nothing recomputed the step takes {peak} bytes{kind}"))
    return Diagnostic(
        "FB0466", f"planner {name} finds no plan within {size}", notes=tuple(notes), hint=hint
    )


def _simulated(program: Program, schedule: Schedule, name: str, budget: Budget | None) -> Trace:
    try:
        trace = simulate(program, schedule)
    except FBError as error:
        raise _invalid(program, schedule, name, error.diagnostics) from None
    if budget is None:
        return trace
    peak = trace.peak_bytes if budget.kind == "device" else trace.activation_peak_bytes
    if peak > budget.bytes:
        message = f"planner {name} returned a plan of {peak} bytes for a budget of {budget.bytes}"
        raise FBError(Diagnostic("FB0463", message, hint="use another planner"))
    return trace


def _invalid(
    program: Program, schedule: Schedule, name: str, found: tuple[Diagnostic, ...]
) -> FBError:
    """The planner's mistake, shown on the text of its plan."""
    from .ir.parser import parse_program
    from .ir.printer import format_program

    file = f"<plan of {name}>"
    text = format_program(program.with_schedule(schedule))
    keep_text(file, text)
    parsed = parse_program(text, file)
    try:
        simulate(parsed, next(s for s in parsed.schedules if s.name == schedule.name))
    except FBError as error:
        found = error.diagnostics
    head = Diagnostic(
        "FB0462", f"planner {name} returned an invalid plan", hint="use another planner"
    )
    return FBError((head, *found))


@dataclass
class _Prover:
    """Proves schedules of one program, each once."""

    program: Program
    budget: Budget | None
    time_limit_s: float
    verdicts: dict[Schedule, Verdict] = field(default_factory=dict)

    def verdict(self, schedule: Schedule) -> Verdict:
        from .verifier import verify

        if schedule not in self.verdicts:
            budgets = () if self.budget is None else (self.budget,)
            self.verdicts[schedule] = verify(
                self.program, schedule, budgets, time_limit_s=self.time_limit_s
            )
        return self.verdicts[schedule]

    def holds(self, schedule: Schedule) -> bool:
        from .verifier import ProvenPlan

        return isinstance(self.verdict(schedule), ProvenPlan)

    def prove(self, schedule: Schedule, name: str) -> Program:
        """The program with the schedule in it and what was proven of it recorded.

        FB0462 where the proof is refused, FB0467 where it was not finished.
        """
        from .verifier import ProvenPlan, Refuted, Undecided

        verdict = self.verdict(schedule)
        match verdict:
            case ProvenPlan(proven):
                held = self.program.with_schedule(schedule)
                return replace(held, proven=(*held.proven, proven))
            case Refuted(diagnostics):
                raise _invalid(self.program, schedule, name, diagnostics)
            case Undecided(why):
                message = (
                    f"the plan of {name} could not be proven in {self.time_limit_s:g} s: {why}"
                )
                raise FBError(
                    Diagnostic("FB0467", message, hint="give more time with --time-limit")
                )
            case _:
                assert_never(verdict)
