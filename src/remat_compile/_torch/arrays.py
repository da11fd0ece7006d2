"""Arrays and numbers of NumPy, which is never imported here: what it holds is asked by its types.

A number of NumPy that is one of Python's too (`float64` is a `float`) counts as that, and is none
here. Of an array of a subclass nothing is known: a mask, a file.
"""

from __future__ import annotations

import sys
from typing import Any, cast

__all__ = [
    "MOST_BYTES",
    "copied_array",
    "form_of",
    "is_array",
    "is_large",
    "is_same_array",
    "text_of_array",
]

MOST_BYTES = 4096
"""Of arrays whose numbers are looked at before each step: half a microsecond."""

_NUMBERS = frozenset("biufcmMSU")
"""Kinds of dtypes whose bytes say all: no objects, and no structures."""


def is_array(value: object) -> bool:
    """Whether it is one whose bytes say all."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    kind = type(value)
    if kind is not getattr(numpy, "ndarray", None):
        generic = getattr(numpy, "generic", None)
        if generic is None or not issubclass(kind, generic):
            return False
        if issubclass(kind, bool | int | float | complex | str):
            return False
    of: Any = value
    return of.dtype.kind in _NUMBERS


def is_large(value: object) -> bool:
    """Whether it is an array whose numbers are too many to be looked at before each step."""
    return is_array(value) and cast("Any", value).nbytes > MOST_BYTES


def form_of(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Its dtype, shape and numbers: equal for what a forward cannot tell apart."""
    return array.dtype.str, array.shape, array.tobytes()


def is_same_array(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if (type(one), one.dtype, one.shape) != (type(other), other.dtype, other.shape):
        return False
    return bool(one.tobytes() == other.tobytes())


def copied_array(array: Any) -> Any:
    return array.copy()


def text_of_array(array: Any) -> str:
    """A few numbers themselves, of others the dtype and the shape."""
    if array.size > 8:
        return f"array of {array.dtype}{list(array.shape)}"
    return " ".join(repr(array).split())
