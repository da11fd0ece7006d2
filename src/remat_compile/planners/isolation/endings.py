"""The ending of a planner's run, whatever it does; and a run in this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from traceback import extract_tb
from typing import Any, get_args

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.program import Budget, Program
from ...ir.schedule import Schedule, Step
from ..contract import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    Planner,
    PlanResult,
    Progress,
    TimedOut,
)


@dataclass(frozen=True)
class Answered:
    result: PlanResult


@dataclass(frozen=True)
class PlannerRefused:
    """The planner raised an FBError: it does not apply, or its options do not fit."""

    diagnostics: tuple[Diagnostic, ...]
    usage: bool = False


@dataclass(frozen=True)
class Failed:
    """The planner raised something else, or its process died; `where` may be empty."""

    what: str
    where: str = ""


@dataclass(frozen=True)
class NoResult:
    """The planner returned no result; `what` describes the value."""

    what: str


@dataclass(frozen=True)
class Unloadable:
    """A process cannot make this planner again, for this reason."""

    reason: str


@dataclass(frozen=True)
class Overdue:
    """It has not come back in its time and was ended."""


Ending = Answered | PlannerRefused | Failed | NoResult | Unloadable | Overdue


def run_here(
    planner: Planner,
    program: Program,
    budget: Budget | None,
    time_limit_s: float,
    progress: Progress | None,
) -> Ending:
    """Runs the planner in this thread. Nothing that it raises gets out."""
    try:
        result = planner.plan(program, budget, time_limit_s=time_limit_s, progress=progress)
    except FBError as error:
        return PlannerRefused(error.diagnostics, error.usage)
    except BaseException as error:  # a plug-in may raise anything at all
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        frames = extract_tb(error.__traceback__)
        return Failed(what, f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "")
    try:
        return Answered(_checked(result))
    except ValueError as error:
        return NoResult(str(error))


def _checked(result: Any) -> PlanResult:
    """The result with plain numbers. ValueError where a type is not the one declared."""
    match result:
        case Optimal() | Feasible() | TimedOut():
            bound = result.lower_bound_ns
            if result.schedule is not None or not isinstance(result, TimedOut):
                _check_schedule(result.schedule)
            return replace(
                result,
                time_ns=_number(result.time_ns),
                lower_bound_ns=None if bound is None else _number(bound),
            )
        case Infeasible(min_budget=least):
            if least is not None:
                if not isinstance(least, Budget):
                    raise ValueError(f"{least!r} where a budget is wanted")
                least = replace(least, bytes=_number(least.bytes))
            _check_diagnostic(result.why)
            return replace(result, min_budget=least, floor_bytes=_number(result.floor_bytes))
        case NotApplicable():
            _check_diagnostic(result.why)
            return result
    raise ValueError(f"{type(result).__name__}, which is not a result")


def _check_schedule(schedule: Any) -> None:
    if not isinstance(schedule, Schedule):
        raise ValueError(f"a {type(schedule).__name__} as schedule")
    for step in schedule.steps:
        if not isinstance(step, get_args(Step)):
            raise ValueError(f"a schedule with the step {step!r}")


def _check_diagnostic(why: Any) -> None:
    if not isinstance(why, Diagnostic):
        raise ValueError(f"{why!r} where a diagnostic is wanted")


def _number(value: Any) -> int:
    """A whole number; those of numpy have `item`."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} where a number is wanted")
    return value
