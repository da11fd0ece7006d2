"""Results of planners as JSON, for workers: schedules travel as `.fbir` text.

What comes in is not trusted: `decode` raises ValueError for anything but a result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.program import Budget
from ...ir.schedule import Compute, Free, Schedule
from ...ir.text.parser import read_syntax
from ...ir.text.printer import format_schedule
from ..contract import Feasible, Infeasible, NotApplicable, Optimal, PlanResult, TimedOut

__all__ = [
    "decode",
    "decode_diagnostic",
    "encode",
    "encode_diagnostic",
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
    """A result as JSON. ValueError for what is none, or holds something of another type."""
    match result:
        case Optimal():
            found: dict[str, Any] = _timed(result)
        case Feasible() | TimedOut():
            found = _timed(result)
        case NotApplicable():
            found = {"why": encode_diagnostic(result.why)}
        case Infeasible():
            least = result.min_budget
            found = {
                "least": None if least is None else [_number(least.bytes), least.kind],
                "floor_bytes": _number(result.floor_bytes),
                "why": encode_diagnostic(result.why),
            }
        case _:
            if isinstance(result, PlanResult):
                assert_never(result)
            raise ValueError(f"{type(result).__name__}, which is not a result")
    return {"is": type(result).__name__, **found}


def _timed(result: Optimal | Feasible | TimedOut) -> dict[str, Any]:
    bound = result.lower_bound_ns
    return {
        "schedule": None if result.schedule is None else _schedule(result.schedule),
        "time_ns": _number(result.time_ns),
        "lower_bound_ns": None if bound is None else _number(bound),
    }


def _schedule(schedule: Schedule) -> str:
    if not isinstance(schedule, Schedule):
        raise ValueError(f"a {type(schedule).__name__} as schedule")
    wrong = [step for step in schedule.steps if not isinstance(step, Compute | Free)]
    if wrong:
        raise ValueError(f"a schedule with the step {wrong[0]!r}")
    return format_schedule(schedule)


def _number(value: Any) -> Any:
    """A whole number; those of numpy have `item`."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} where a number is wanted")
    return value


def decode(data: Any) -> PlanResult:
    """The result that `encode` made. ValueError for anything else."""
    try:
        return _decode(data)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"an unreadable result ({type(error).__name__}: {error})") from None


def _decode(data: Any) -> PlanResult:
    if data["is"] == "Infeasible":
        least = None if data["least"] is None else Budget(*data["least"])
        return Infeasible(least, data["floor_bytes"], decode_diagnostic(data["why"]))
    if data["is"] == "NotApplicable":
        return NotApplicable(decode_diagnostic(data["why"]))
    time_ns, bound = data["time_ns"], data["lower_bound_ns"]
    if data["is"] == "TimedOut":
        text = data["schedule"]
        return TimedOut(None if text is None else parse_schedule(text), time_ns, bound)
    schedule = parse_schedule(data["schedule"])
    if data["is"] == "Optimal":
        return Optimal(schedule, time_ns, bound)
    return Feasible(schedule, time_ns, bound)


def encode_diagnostic(d: Diagnostic) -> dict[str, Any]:
    """Without spans: they point into texts that only the worker knows."""
    notes = [note.message for note in d.notes]
    return {"code": d.code, "message": d.message, "notes": notes, "hint": d.hint}


def decode_diagnostic(data: Any) -> Diagnostic:
    notes = tuple(Note(str(message)) for message in data["notes"])
    return Diagnostic(data["code"], data["message"], notes=notes, hint=data["hint"])
