"""Counter-examples of values and claims, on the plan's own text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ...ir.diagnostics import Diagnostic, Note
from ...ir.program import Proven
from ...ir.schedule import Schedule
from ..obligations.claims import Claims
from ..obligations.values import Misread, WrongValues
from ..read.events import Event
from ..read.statements import Statements
from .history import History


def explain_wrong(
    statements: Statements, schedule: Schedule, events: Sequence[Event], wrong: WrongValues
) -> tuple[Diagnostic, ...]:
    """One diagnostic per wrong value, in the order of the steps; what only follows is left out."""
    history = History(statements, schedule, events)
    return tuple(_explain(history, clause) for clause in wrong.clauses)


def _explain(history: History, clause: Misread) -> Diagnostic:
    name, schedule = clause.subject, history.schedule
    event = None if clause.event is None else history.events[clause.event]
    here = "" if event is None else history.where(event)
    span = schedule.span if event is None else event.step.span
    notes = _notes(history, clause)
    match clause.rule:
        case "read":
            message = f"{here} reads %{name}, which does not hold the value of the graph there"
            hint = "make it again before this step, or run the step earlier"
            return Diagnostic("FB0840", message, span, notes, hint)
        case "draw":
            message = f"{here} draws from another random state than in the unplanned step"
            hint = "keep the token of its first run, and the order of first runs"
            return Diagnostic("FB0841", message, span, notes, hint)
        case "copy":
            message = f"{here} brings back an older version of %{name}"
            return Diagnostic("FB0842", message, span, notes, "compute it again instead")
        case "kept":
            what = {**history.statements.kept, **history.statements.host_end}[name]
            message = f"%{name} ({what}) does not end with the value of the graph"
            return Diagnostic("FB0843", message, span, notes, "compute its writer again")
        case "buffer":
            message = f"buffer %{name} is not written back exactly once"
            return Diagnostic("FB0844", message, span, notes, "run the loss exactly once")
        case "stream":
            message = "the stream of random numbers does not end as in the unplanned step"
            hint = "run each random operator first in the order of the model, and the loss once"
            return Diagnostic("FB0845", message, span, notes, hint)
        case _:
            assert_never(clause.rule)


def _notes(history: History, clause: Misread) -> tuple[Note, ...]:
    if clause.maker is None:
        return ()
    maker = history.events[clause.maker]
    return (history.note(f"what is there was left by {maker.name}", clause.maker),)


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**30 else "more than 10^30"


def explain_claims(
    schedule: Schedule, proven: Proven, claimed: Claims, true: Claims
) -> tuple[Diagnostic, ...]:
    """The claims that do not hold: FB0870 the time, FB0871 what no schedule can do without."""
    diagnostics: list[Diagnostic] = []
    at = f"the proof recorded for @{schedule.name} claims"
    hint = "verify the plan again, and save what is proven then"
    if claimed.time_ns != true.time_ns:
        message = f"{at} a time of {_shown(claimed.time_ns)} ns; the steps take {true.time_ns} ns"
        diagnostics.append(Diagnostic("FB0870", message, proven.span, hint=hint))
    if claimed.least_time_ns > true.least_time_ns:
        message = (
            f"{at} that no schedule takes less than {_shown(claimed.least_time_ns)} ns; only "
            f"{true.least_time_ns} ns are certain"
        )
        diagnostics.append(Diagnostic("FB0871", message, proven.span, hint=hint))
    if claimed.least_bytes > true.least_bytes:
        message = (
            f"{at} that no schedule takes less than {_shown(claimed.least_bytes)} bytes; only "
            f"{true.least_bytes} bytes are certain"
        )
        diagnostics.append(Diagnostic("FB0871", message, proven.span, hint=hint))
    return tuple(diagnostics)
