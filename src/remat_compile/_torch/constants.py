"""Numbers, texts, switches, arrays of numbers, and small containers of them: what Python code may
go on by.

What a value is goes by its type alone: a proxy may answer for another class, or raise.
"""

from __future__ import annotations

from typing import Any, cast

from .arrays import ArrayForm, is_array, is_same_array, is_whole
from .contents import parts_of

__all__ = [
    "ABSENT",
    "MOST_PARTS",
    "can_be_looked_at",
    "copied_constant",
    "has_array",
    "is_constant",
    "is_one_of",
    "same_constant",
]

MOST_PARTS = 64
"""Of a container that is looked at before each step; larger ones are tables."""

ABSENT = object()
"""What a name stands for that is not there."""

_SCALARS = (bool, int, float, complex, str)
"""A number of NumPy that is one of them counts as that."""


def can_be_looked_at(kind: type) -> bool:
    """Whether looking a class up runs no code of a metaclass, which may raise."""
    own = type(kind)
    return (
        own.__eq__ is type.__eq__
        and own.__hash__ is type.__hash__
        and own.__getattribute__ is type.__getattribute__
    )


def is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """By identity: `in` asks a metaclass for its `__eq__`."""
    return any(kind is one for one in kinds)


def is_constant(value: object) -> bool:
    """Whether it is a number, a text, a switch, an array that is compared as a whole, or a small
    container of nothing else."""
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        count += 1
        if count > MOST_PARTS:
            return False
        kind = type(part)
        if kind is dict:
            pairs = cast("dict[object, object]", part)
            waiting += [*pairs.keys(), *pairs.values()]
        elif (kind is list or kind is set or kind is frozenset) or issubclass(kind, tuple):
            waiting += parts_of(part)  # a class of the user's may raise when it is asked
        elif not (
            part is None or issubclass(kind, _SCALARS) or kind is ArrayForm or is_whole(part)
        ):
            return False
    return True


def has_array(constant: Any) -> bool:
    """Whether a constant is an array, or a container of one."""
    kind = type(constant)
    if kind is dict:
        return any(map(has_array, (*constant.keys(), *constant.values())))
    if kind is list or kind is set or kind is frozenset or issubclass(kind, tuple):
        return any(map(has_array, constant))
    return kind is ArrayForm or is_array(constant)


def copied_constant(value: Any) -> Any:
    """A constant with containers of its own, and the form of each array in its place: what is
    written into the other's does not show."""
    kind = type(value)
    if kind is dict:
        return {key: copied_constant(part) for key, part in value.items()}
    if kind is list:
        return [*map(copied_constant, value)]
    if kind is set:
        return set(value)
    if issubclass(kind, tuple):
        parts = tuple(map(copied_constant, value))
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    return ArrayForm.of(value) if is_array(value) else value


def same_constant(one: Any, other: Any) -> bool:
    """Whether a forward cannot tell two values apart: 1, 1.0 and True are three, as are 0.0 and
    -0.0."""
    if one is other:
        return True
    kind = _kind(one)
    if is_array(one) or kind is ArrayForm:
        return _same_array(one, other)
    if kind is not _kind(other):
        return False
    if kind is float or kind is complex:
        return bool(kind.__repr__(one) == kind.__repr__(other))
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(same_constant, one, other))
    if kind is dict:
        return same_constant([*one.items()], [*other.items()])
    return bool(one == other)


def _same_array(one: Any, other: Any) -> bool:
    """Of arrays and forms of some."""
    if type(one) is not ArrayForm:
        return other.is_of(one) if type(other) is ArrayForm else is_same_array(one, other)
    return bool(one == other) if type(other) is ArrayForm else is_array(other) and one.is_of(other)


def _kind(value: object) -> type:
    kinds = (*_SCALARS, tuple)
    return next((kind for kind in kinds if issubclass(type(value), kind)), type(value))
