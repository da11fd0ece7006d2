"""Options of a planner: from text to the typed fields of its dataclass.

Understood field types: int, float, bool, str, None, Literal, unions of these, tuples
`tuple[T, ...]`, and `Planner`. A planner class may define

    @classmethod
    def check_options(cls, **options) -> Iterator[tuple[str, str]]

which yields (option, what is wrong) for values of the right type that are out of range
or contradict each other. `checked` applies it, and the lower ends that `at_least` gives to
options, where a planner is made in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ...ir.diagnostics import Diagnostic, FBError, nearest
from ..contract import Planner
from .text import Option, PlannerText, Value, format_value, span_of

Build = Callable[[PlannerText], Planner]
_LEAST = "least"
WHERE = "where"
"""In the metadata of an option: it says where a planner works and changes no plan."""


class _Mismatch(Exception):
    """The value does not have the wanted type."""


def at_least(least: int, default: int | None) -> Any:
    """The field of an option whose number must be at least `least`."""
    return field(default=default, metadata={_LEAST: least})


def default_of(f: Field[Any]) -> object:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def read_options(
    cls: type, parsed: PlannerText, build: Build
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Field values for `cls` and everything that is wrong with the text."""
    hints = {f.name: get_type_hints(cls)[f.name] for f in fields(cls)}
    problems: list[Diagnostic] = []
    values: dict[str, Any] = {}
    seen: dict[str, Option] = {}
    for option in parsed.options:
        name = option.name.replace("-", "_")
        if name not in hints:
            problems.append(_unknown(parsed.name, option, hints))
            continue
        if name in seen:
            problems.append(_twice(option, seen[name]))
            continue
        seen[name] = option
        try:
            values[name] = _convert(option.value, hints[name], build)
        except _Mismatch:
            problems.append(_mistyped(option, hints[name]))
        except FBError as error:
            problems += error.diagnostics
    required = [f.name for f in fields(cls) if default_of(f) is MISSING and f.name not in seen]
    for name in required:
        message = f"{parsed.name} needs option {name}"
        problems.append(Diagnostic("FB0403", message, span_of(parsed.column, len(parsed.name))))
    if not required:
        problems += _out_of_range(cls, values, seen)
    return values, problems


def _convert(value: Value, hint: Any, build: Build) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for part in get_args(hint):
            try:
                return _convert(value, part, build)
            except _Mismatch:
                continue
        raise _Mismatch
    if origin is tuple and isinstance(value, tuple):
        return tuple(_convert(item, get_args(hint)[0], build) for item in value)
    if hint is Planner and isinstance(value, PlannerText):
        return build(value)
    word = value.name if isinstance(value, PlannerText) and not value.braces else value
    if origin is Literal and any(word == known for known in get_args(hint)):
        return word
    if hint is float and isinstance(word, int) and not isinstance(word, bool):
        return float(word)
    if hint in (int, float, bool, str, NoneType) and type(word) is hint:
        return word
    raise _Mismatch


def _unknown(planner: str, option: Option, known: dict[str, Any]) -> Diagnostic:
    options = f"its options: {', '.join(known)}" if known else "it has no options"
    return Diagnostic(
        "FB0403",
        f'{planner} has no option "{option.name}".{nearest(option.name, known)}',
        span_of(option.column, len(option.name)),
        hint=options,
    )


def _twice(option: Option, first: Option) -> Diagnostic:
    return Diagnostic(
        "FB0405",
        f"option {option.name} is given twice, the first time at column {first.column}",
        span_of(option.column, len(option.name)),
        hint="keep one of them",
    )


def _mistyped(option: Option, hint: Any) -> Diagnostic:
    return Diagnostic(
        "FB0404",
        f"option {option.name} must be {_describe(hint)}, not {_shown(option.value)}",
        span_of(option.column, len(option.name)),
    )


def _shown(value: Value) -> str:
    if isinstance(value, PlannerText):
        return value.name + ("{...}" if value.braces else "")
    return "a list" if isinstance(value, tuple) else format_value(value)


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe(part) for part in get_args(hint))
    if origin is Literal:
        return " or ".join(str(part) for part in get_args(hint))
    if origin is tuple:
        return f"a list of which each is {_describe(get_args(hint)[0])}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    return "none" if hint is NoneType else names.get(hint, "a planner")


def _out_of_range(cls: Any, given: dict[str, Any], seen: dict[str, Option]) -> Iterator[Diagnostic]:
    values = {f.name: given.get(f.name, default_of(f)) for f in fields(cls)}
    for name, message in _complaints(cls, values):
        if name in seen and name not in given:
            continue  # already reported as mistyped
        option = seen.get(name)
        span = span_of(option.column, len(option.name)) if option else None
        yield Diagnostic("FB0404", f"option {name} {message}", span)


def _complaints(cls: Any, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for f in fields(cls):
        least, value = f.metadata.get(_LEAST), values[f.name]
        if least is not None and value is not None and value < least:
            yield f.name, f"must be at least {least}, not {value}"
    check = getattr(cls, "check_options", None)
    if check is not None:
        yield from check(**values)


def checked(planner: Any) -> None:
    """For `__post_init__`: raises FBError (FB0404) with every option out of range."""
    values = {f.name: getattr(planner, f.name) for f in fields(planner)}
    problems = [
        Diagnostic("FB0404", f"{planner.name}: option {name} {message}")
        for name, message in _complaints(type(planner), values)
    ]
    if problems:
        raise FBError(problems, usage=True)
