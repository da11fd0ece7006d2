"""Results of planners as JSON, between processes: schedules travel as `.fbir` text.

What comes in is not trusted: `decode` raises ValueError for anything but a result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.program import Budget
from ...ir.schedule import Schedule
from ...ir.text.parser import read_syntax
from ...ir.text.printer import format_schedule
from ..contract import Feasible, Infeasible, NotApplicable, Optimal, PlanResult, TimedOut
from .endings import Answered, Ending, Failed, NoResult, Overdue, Refused, Unloadable

__all__ = [
    "decode",
    "decode_ending",
    "encode",
    "encode_ending",
    "parse_schedule",
]

_HEAD = "fbir 1\ngraph @g {\n}\nbind {\n  grads fresh\n}\n"


def parse_schedule(text: str) -> Schedule:
    """The schedule that `format_schedule` spelled, without spans. ValueError where it is none."""
    try:
        (read,) = read_syntax(_HEAD + text).schedules
    except FBError as error:
        raise ValueError(error.diagnostics[0].message) from None
    steps = tuple(replace(step, span=None) for step in read.steps)
    return Schedule(read.name, read.planner, steps)


def encode(result: PlanResult) -> dict[str, Any]:
    """A result as JSON."""
    values: dict[str, Any]
    match result:
        case Optimal() | Feasible() | TimedOut():
            schedule = result.schedule
            values = {
                "schedule": None if schedule is None else format_schedule(schedule),
                "time_ns": result.time_ns,
                "lower_bound_ns": result.lower_bound_ns,
            }
        case NotApplicable():
            values = {"why": _encode_diagnostic(result.why)}
        case Infeasible():
            least = result.min_budget
            values = {
                "least": None if least is None else [least.bytes, least.kind],
                "floor_bytes": result.floor_bytes,
                "why": _encode_diagnostic(result.why),
            }
        case _:
            assert_never(result)
    return {"is": type(result).__name__, **values}


def decode(data: Any) -> PlanResult:
    """The result that `encode` made. ValueError for anything else."""
    try:
        return _decode(data)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"an unreadable result ({type(error).__name__}: {error})") from None


def _decode(data: Any) -> PlanResult:
    if data["is"] == "Infeasible":
        least = None if data["least"] is None else Budget(*data["least"])
        return Infeasible(least, data["floor_bytes"], _decode_diagnostic(data["why"]))
    if data["is"] == "NotApplicable":
        return NotApplicable(_decode_diagnostic(data["why"]))
    time_ns, bound = data["time_ns"], data["lower_bound_ns"]
    if data["is"] == "TimedOut":
        text = data["schedule"]
        return TimedOut(None if text is None else parse_schedule(text), time_ns, bound)
    schedule = parse_schedule(data["schedule"])
    if data["is"] == "Optimal":
        return Optimal(schedule, time_ns, bound)
    return Feasible(schedule, time_ns, bound)


def _encode_diagnostic(d: Diagnostic) -> dict[str, Any]:
    """Without spans: they point into texts that only the worker knows."""
    notes = [note.message for note in d.notes]
    return {"code": d.code, "message": d.message, "notes": notes, "hint": d.hint}


def _decode_diagnostic(data: Any) -> Diagnostic:
    notes = tuple(Note(str(message)) for message in data["notes"])
    return Diagnostic(data["code"], data["message"], notes=notes, hint=data["hint"])


def encode_ending(ending: Ending) -> dict[str, Any]:
    """How a run ended, as JSON."""
    values: dict[str, Any]
    match ending:
        case Answered(result):
            values = {"result": encode(result)}
        case Refused(diagnostics, usage):
            values = {"diagnostics": [_encode_diagnostic(d) for d in diagnostics], "usage": usage}
        case Failed(what, where):
            values = {"what": what, "where": where}
        case NoResult(what):
            values = {"what": what}
        case Unloadable(why):
            values = {"why": why}
        case Overdue():
            values = {}
        case _:
            assert_never(ending)
    return {"is": type(ending).__name__, **values}


def decode_ending(data: Any) -> Ending:
    """The ending that `encode_ending` made; NoResult for anything else."""
    try:
        match data["is"]:
            case "Answered":
                return Answered(decode(data["result"]))
            case "Refused":
                diagnostics = tuple(_decode_diagnostic(d) for d in data["diagnostics"])
                return Refused(diagnostics, bool(data["usage"]))
            case "Failed":
                return Failed(str(data["what"]), str(data["where"]))
            case "NoResult":
                return NoResult(str(data["what"]))
            case "Unloadable":
                return Unloadable(str(data["why"]))
    except (ValueError, KeyError, TypeError) as error:
        return NoResult(f"something unreadable ({error})")
    return NoResult("something unreadable")
