"""The ending of a planner's run as JSON between processes: schedules travel as `.fbir` text.

What comes in is not trusted: `decode` raises ValueError for anything that `encode` does not write.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.program import Budget
from ...ir.schedule import Schedule
from ...ir.text.parser import read_syntax
from ...ir.text.printer import format_schedule
from ..contract import PlanResult
from .endings import Ending, NoResult

_HEAD = "fbir 1\ngraph @g {\n}\nbind {\n  grads fresh\n}\n"
_KINDS = {kind.__name__: kind for kind in (*get_args(PlanResult), *get_args(Ending))}


def parse_schedule(text: str) -> Schedule:
    """The schedule that `format_schedule` spelled, without spans. ValueError where it is none."""
    try:
        (read,) = read_syntax(_HEAD + text).schedules
    except FBError as error:
        raise ValueError(error.diagnostics[0].message) from None
    steps = tuple(replace(step, span=None) for step in read.steps)
    return Schedule(read.name, read.planner, steps)


def encode(value: PlanResult | Ending) -> dict[str, Any]:
    """A result or an ending, its fields by name. Spans of diagnostics are left out: they point
    into texts that only the process knows."""
    data = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return {"is": type(value).__name__, **data}


def _plain(value: Any) -> Any:
    match value:
        case Schedule():
            return format_schedule(value)
        case Budget():
            return [value.bytes, value.kind]
        case Diagnostic():
            notes = [note.message for note in value.notes]
            return [value.code, value.message, notes, value.hint]
        case tuple():
            return [_plain(item) for item in value]
        case _ if type(value).__name__ in _KINDS:
            return encode(value)
    return value


def decode(data: Any) -> Any:
    """Inverse of `encode`. ValueError for anything else."""
    try:
        kind = _KINDS[data["is"]]
        return kind(**{name: _read(name, data[name]) for name in data if name != "is"})
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"an unreadable result ({type(error).__name__}: {error})") from None


def _read(field: str, value: Any) -> Any:
    match field:
        case _ if value is None:
            return None
        case "schedule":
            return parse_schedule(value)
        case "min_budget":
            return Budget(*value)
        case "why":
            return _diagnostic(*value)
        case "diagnostics":
            return tuple(_diagnostic(*item) for item in value)
        case "result":
            return decode(value)
    return value


def _diagnostic(code: str, message: str, notes: list[str], hint: str | None) -> Diagnostic:
    return Diagnostic(code, message, notes=tuple(map(Note, notes)), hint=hint)


def decode_ending(data: Any) -> Ending:
    """The ending that `encode` made it of; NoResult for anything else."""
    try:
        ending = decode(data)
    except ValueError as error:
        return NoResult(str(error))
    return ending if isinstance(ending, Ending) else NoResult("something unreadable")
