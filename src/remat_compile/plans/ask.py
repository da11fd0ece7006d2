"""Asks a planner for a plan, whoever wrote it and whatever it does.

One from another package runs in a process of its own, which is killed when it does not
come back. One that a process cannot make again (a class of a notebook, say) and those of
this package run on a thread; `auto` runs here, and shields itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from ..ir.diagnostics import Diagnostic, FBError, Note
from ..planners.auto import Auto
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

if TYPE_CHECKING:
    from ..ir.program import Budget, Program
    from ..ir.schedule import Schedule
    from ..planners.bounds.time_bounds import TimeBounds
    from ..planners.contract import Planner, PlanResult

GRACE_S = 5.0
"""Seconds past its time limit (and a quarter of it) after which a planner counts as hung."""


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
    """Return the answer of the planner. FB0460 where it fails, FB0461 where it does not come back,
    FB0464 for what is no result; and what it refuses itself.

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
