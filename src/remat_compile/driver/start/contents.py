"""What classes and code hold, looked at without running any of it."""

from __future__ import annotations

import struct
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..._torch.libraries import is_library

__all__ = ["constant", "functions_of", "is_patch", "parts_of", "shows_all", "slots_of"]

POINTER_BYTES = struct.calcsize("P")


def functions_of(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The methods that a class has itself, with their names; of a property what reads it."""
    for name, value in vars(kind).items():
        inner: Callable[..., Any] | None = value
        if isinstance(value, staticmethod | classmethod):
            inner = value.__func__
        elif isinstance(value, property):
            inner = value.fget
        if isinstance(inner, types.FunctionType):
            yield name, inner


def is_patch(value: object) -> bool:
    """Whether somebody else put a function of their own into a library."""
    return isinstance(value, types.FunctionType) and not is_library(value.__code__.co_filename)


def parts_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions in it."""
    yield code
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            yield from parts_of(held)


def constant(value: object) -> object:
    """A constant of code as what is the same in each process, and another for another type."""
    match value:
        case types.CodeType():
            return "code"
        case frozenset():
            return "frozenset", sorted(map(repr, value))
        case tuple():
            return tuple(map(constant, value))
        case _:
            return type(value).__name__, repr(value)


def shows_all(kind: type) -> bool:
    """Whether a class adds no more to its objects than attributes and slots. Classes in C, also
    those that look like one in Python (`array.array`), have room for what is not seen."""
    names = {*slots_of(kind), *(n for n in ("__dict__", "__weakref__") if n in vars(kind))}
    before = 0 if kind.__base__ is None else kind.__base__.__basicsize__
    is_in_python = kind.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE
    return bool(is_in_python) and kind.__basicsize__ <= before + POINTER_BYTES * len(names)


def slots_of(kind: type) -> Iterable[str]:
    """Names under which they are found: private ones have that of their class in front."""
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = [name.startswith("__") and not name.endswith("__") for name in names]
    before = f"_{kind.__name__.lstrip('_')}"
    return [f"{before}{n}" if own else n for n, own in zip(names, private, strict=True)]
