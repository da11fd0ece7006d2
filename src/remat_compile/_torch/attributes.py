"""What the user keeps on modules, and what a call of the forward changes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..ir.diagnostics import Diagnostic
from .arrays import MOST_BYTES_AT_CAPTURE, ArrayForm, is_array, plain_array
from .constants import same_constant
from .contents import CONTAINERS, parts_of
from .outside import OF_MODULES, generators_of, outside_of
from .places import Place

__all__ = ["attributes_of", "changed_attributes", "state_warnings"]


DEEPEST = 64
"""Containers in containers that are looked into."""


class _OutsideValue(tuple[Any, ...]):
    """What a constant outside of modules is, alone in a tuple."""

    __slots__ = ()


def attributes_of(model: nn.Module) -> dict[str, Any]:
    """What the user keeps on modules, by path, and constants outside of them that the forward may
    change, by name; of containers what they hold, in tuples, and of generators their state."""
    held = {
        f"{path}.{key}" if path else key: _held(value)
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in OF_MODULES
    }
    held |= {place.name: _OutsideValue((_held(place.value()),)) for place in outside_of(model)}
    return held | {own.name: own.condensed() for own in generators_of(model)}


def changed_attributes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of those that are new, or no longer what they were. What is new outside of modules was
    left open (in a configuration, say), and is filled in."""
    return [
        name
        for name, value in after.items()
        if (_differ(before[name], value) if name in before else type(value) is not _OutsideValue)
    ]


def state_warnings(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    drew: Sequence[str] = (),
    drawn_at: Place | None = None,
) -> tuple[Diagnostic, ...]:
    """FB0514 for generators that a forward `drew` from, and for attributes that it changes."""
    warnings = []
    if drew:
        at = f" ({drawn_at})" if drawn_at else ""
        message = f"the forward draws from {' and '.join(drew)}{at}; a planned step does not"
        hint = "draw with torch if it can change what is computed"
        warnings.append(Diagnostic("FB0514", message, hint=hint))
    if changed := changed_attributes(before, after):
        names = [_change(name, before, after[name]) for name in changed]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        message = f"the forward changes {', '.join(names[:5])}{more}; a planned step does not"
        hint = "return it, or change it outside of the forward, if something reads it"
        warnings.append(Diagnostic("FB0514", message, hint=hint))
    return tuple(warnings)


def _change(name: str, before: Mapping[str, Any], new: Any) -> str:
    old = before.get(name)
    return f"{name} (from {old!r} to {new!r})" if _is_scalar(old) and _is_scalar(new) else name


def _held(value: Any, within: tuple[int, ...] = ()) -> Any:
    if is_array(value):
        has_objects = plain_array(value).dtype.hasobject
        return value if has_objects else ArrayForm.of(value, MOST_BYTES_AT_CAPTURE)
    if not issubclass(type(value), (*CONTAINERS, tuple)) or id(value) in within:
        return value
    if len(within) == DEEPEST:
        return type(value), id(value)
    inside = (*within, id(value))
    parts, keys = parts_of(value), list[Any]()
    if issubclass(type(value), dict):
        keys, parts = [key for key, _ in parts], [part for _, part in parts]
    return (type(value), *keys, *(_held(part, inside) for part in parts))


def _differ(old: Any, new: Any) -> bool:
    if issubclass(type(old), tuple) and issubclass(type(new), tuple):
        return len(old) != len(new) or any(map(_differ, old, new))
    if type(old) is ArrayForm and type(new) is ArrayForm:
        return old != new
    return not same_constant(old, new) if _is_scalar(old) and _is_scalar(new) else old is not new


def _is_scalar(value: Any) -> bool:
    return value is None or issubclass(type(value), bool | int | float | str)
