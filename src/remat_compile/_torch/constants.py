"""Numbers, texts, switches and small containers of them: what Python code may go on by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

__all__ = ["ABSENT", "is_constant", "same_constant"]

MOST_PARTS = 64
"""Of a container that is looked at before each step; larger ones are tables."""

ABSENT = object()
"""What a name stands for that is not there."""

_SCALARS = (bool, int, float, complex, str)
"""A number of NumPy that is one of them counts as that."""


def is_constant(value: object) -> bool:
    """Whether it is a number, a text or a switch, or a small container of nothing else."""
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        count += 1
        if count > MOST_PARTS:
            return False
        if type(part) is dict:
            waiting += [*part.keys(), *part.values()]
        elif type(part) in (list, set, frozenset) or isinstance(part, tuple):
            waiting += cast("Iterable[object]", part)
        elif not (part is None or isinstance(part, _SCALARS)):
            return False
    return True


def same_constant(one: Any, other: Any) -> bool:
    """Whether a forward cannot tell two values apart: 1, 1.0 and True are three, as are 0.0 and
    -0.0."""
    if one is other:
        return True
    kind = _kind(one)
    if kind is not _kind(other):
        return False
    if kind in (float, complex):
        return bool(kind.__repr__(one) == kind.__repr__(other))
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(same_constant, one, other))
    if kind is dict:
        return same_constant([*one.items()], [*other.items()])
    return bool(one == other)


def _kind(value: object) -> type:
    kinds = (*_SCALARS, tuple)
    return next((kind for kind in kinds if isinstance(value, kind)), type(value))
