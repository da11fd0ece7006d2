"""The pass runner: costs -> planner -> simulate -> verify -> plan.

No plan leaves it unproven. A planner is a plug-in and is not trusted: one that raises,
does not come back, or hands over a plan that is invalid or too large is reported by name.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, assert_never

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

__all__ = ["Phases", "Planned", "prove", "run_planner"]

GRACE_S = 5.0
"""Seconds past its time limit (and a quarter of it) after which a planner counts as hung."""


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
    knows one.
    """

    program: Program
    schedule: Schedule
    trace: Trace
    lower_bound_ns: int | None


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
    with phases.phase("plan", f"planning with {name}"):
        result = _call(planner, name, program, budget, time_limit_s, phases.progress)
        schedule, bound = _schedule_of(result, name, budget, baseline, time_limit_s)
    with phases.phase("verify", "proving the plan"):
        trace = _simulated(program, schedule, name, budget)
        program = prove(program, schedule, name, budget, time_limit_s=time_limit_s)
    return Planned(program, schedule, trace, bound)


def _call(
    planner: Planner,
    name: str,
    program: Program,
    budget: Budget | None,
    time_limit_s: float,
    progress: Callable[[str], None] | None,
) -> PlanResult:
    """Runs the planner on a thread of its own, so that one that hangs can be given up."""
    outcome: queue.SimpleQueue[PlanResult | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put(planner.plan(program, budget, time_limit_s=time_limit_s, progress=progress))
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=work, daemon=True, name=f"planner {name}").start()
    patience = time_limit_s * 1.25 + GRACE_S
    try:
        result = outcome.get(timeout=patience)
    except queue.Empty:
        message = f"planner {name} has not come back {patience:.0f} s after it was started"
        hint = f"its time limit was {time_limit_s:g} s; use another planner"
        raise FBError(Diagnostic("FB0461", message, hint=hint)) from None
    if isinstance(result, FBError):
        raise result
    if isinstance(result, BaseException):
        what = f"{type(result).__name__}: {result}" if str(result) else type(result).__name__
        message = f"planner {name} failed: {what}"
        raise FBError(
            Diagnostic("FB0460", message, notes=_where(result), hint="use another planner")
        ) from result
    return result


def _where(error: BaseException) -> tuple[Note, ...]:
    """The innermost place of the planner's own failure."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return ()
    return (Note(f"raised in {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"),)


def _schedule_of(
    result: PlanResult,
    name: str,
    budget: Budget | None,
    baseline: Baseline,
    time_limit_s: float,
) -> tuple[Schedule, int | None]:
    match result:
        case Optimal() | Feasible():
            return result.schedule, result.lower_bound_ns
        case TimedOut():
            if result.schedule is not None:
                return result.schedule, result.lower_bound_ns
            message = f"planner {name} found no plan within {time_limit_s:g} s"
            hint = "give it more time (--time-limit), or use --planner dtr"
            raise FBError(Diagnostic("FB0465", message, hint=hint))
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


def prove(
    program: Program,
    schedule: Schedule,
    name: str,
    budget: Budget | None,
    *,
    time_limit_s: float,
) -> Program:
    """The program with the schedule in it and what was proven of it recorded.

    FB0462 where the proof is refused, FB0467 where it was not finished.
    """
    from .verifier import ProvenPlan, Refuted, Undecided, verify

    budgets = () if budget is None else (budget,)
    verdict = verify(program, schedule, budgets, time_limit_s=time_limit_s)
    match verdict:
        case ProvenPlan(proven):
            held = program.with_schedule(schedule)
            return replace(held, proven=(*held.proven, proven))
        case Refuted(diagnostics):
            raise _invalid(program, schedule, name, diagnostics)
        case Undecided(why):
            message = f"the plan of {name} could not be proven in {time_limit_s:g} s: {why}"
            raise FBError(Diagnostic("FB0467", message, hint="give more time with --time-limit"))
        case _:
            assert_never(verdict)
