"""The ending of a planner's run, whatever the planner does; a run in this process; and endings as
JSON between processes, with schedules as `.fbir` text.

JSON from another process is not trusted: `decode` raises ValueError for anything that `encode` does
not write.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from traceback import extract_tb
from typing import Any, get_args

from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.program import Budget, Program
from ...ir.schedule import Schedule, Step
from ...ir.text.parser import read_syntax
from ...ir.text.printer import format_schedule
from ..contract import Planner, PlanResult, Progress


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

_KINDS = {kind.__name__: kind for kind in (*get_args(PlanResult), *get_args(Ending))}
_HEAD = "fbir 1\ngraph @g {\n}\nbind {\n  grads fresh\n}\n"


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
    if not isinstance(result, get_args(PlanResult)):
        raise ValueError(f"{type(result).__name__}, which is not a result")
    given = {f.name: getattr(result, f.name) for f in fields(result)}
    optional = {f.name for f in fields(result) if str(f.type).endswith("| None")}
    checked = {
        name: _checked_field(name, value)
        for name, value in given.items()
        if value is not None or name not in optional
    }
    plain: PlanResult = replace(result, **checked)
    return plain


def _checked_field(name: str, value: Any) -> Any:
    match name:
        case "schedule":
            if not isinstance(value, Schedule):
                raise ValueError(f"a {type(value).__name__} as schedule")
            for step in value.steps:
                if not isinstance(step, get_args(Step)):
                    raise ValueError(f"a schedule with the step {step!r}")
        case "min_budget":
            if not isinstance(value, Budget):
                raise ValueError(f"{value!r} where a budget is wanted")
            return replace(value, bytes=_number(value.bytes))
        case "why":
            if not isinstance(value, Diagnostic):
                raise ValueError(f"{value!r} where a diagnostic is wanted")
        case "time_ns" | "lower_bound_ns" | "floor_bytes":
            return _number(value)
    return value


def _number(value: Any) -> int:
    """A whole number; those of numpy have `item`."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} where a number is wanted")
    return value


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
