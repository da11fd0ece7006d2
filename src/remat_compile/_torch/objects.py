"""Objects that the Python of a forward may go on by: which one stands under a name counts.

Functions, methods, classes, members of an `Enum`, configurations and other plain objects, and
arrays of NumPy that are not compared as a whole. No tensors, modules, generators of random numbers,
locks or loggers.

Example: `self.act = torch.relu` in a model; `torch.tanh` in its place is another step. A copy of a
configuration that holds the same is the same step.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from .arrays import is_array, is_same_array, is_whole, text_of_array
from .constants import (
    MOST_PARTS,
    can_be_looked_at,
    copied_constant,
    is_constant,
    is_one_of,
    same_constant,
)

__all__ = [
    "arrays_in",
    "copied_table",
    "is_object",
    "is_plain",
    "is_table",
    "leaves_of",
    "parts_of_object",
    "same_object",
    "text_of",
]

MOST_COMPARED = 10_000
"""Values of two objects that are compared; larger ones are taken to differ."""

_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)
_CALLED = (types.FunctionType, types.MethodType, functools.partial, *_BUILT_IN)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_IN_CLASSES = (staticmethod, classmethod, property)
_IN_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: of classes that are made by a `class` statement, among others."""


def is_object(value: object) -> bool:
    """Whether another one in its place may be another step. Runs no code of `value`."""
    if is_array(value):
        return not is_whole(value)
    kind = type(value)
    return (
        issubclass(kind, (*_CALLED, *_OPERATORS, *_OF_TORCH, *_IN_CLASSES, type, enum.Enum))
        or is_plain(kind)
        or _is_slotted(kind)
    )


def is_table(value: object) -> bool:
    """Whether it is a small container of objects, and of constants beside them."""
    if not is_one_of(type(value), (list, dict, tuple)) or not value or is_constant(value):
        return False
    leaves = leaves_of(value)
    return leaves is not None and all(is_constant(x) or is_object(x) for x in leaves)


def arrays_in(value: object) -> list[Any]:
    """An array itself, and those that a table holds."""
    return [leaf for leaf in leaves_of(value) or () if is_array(leaf)]


def leaves_of(table: Any) -> list[Any] | None:
    """What lists, tuples and dictionaries in one another hold, keys included; None of more than
    MOST_PARTS, as of one that holds itself."""
    leaves: list[Any] = []
    waiting, count = [table], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > MOST_PARTS:
            return None
        if type(value) is dict:
            leaves += value
            waiting += value.values()
        elif type(value) is list or type(value) is tuple:
            waiting += value
        else:
            leaves.append(value)
    return leaves


def copied_table(table: Any, memo: Mapping[int, Any] = MappingProxyType({})) -> Any:
    """The lists, tuples and dictionaries anew, with the same objects, or those that `memo` has in
    their places, by id."""
    if type(table) is dict:
        return {key: copied_table(part, memo) for key, part in table.items()}
    if type(table) is list or type(table) is tuple:
        return type(table)(copied_table(part, memo) for part in table)
    return set(table) if type(table) is set else memo.get(id(table), table)


def is_plain(kind: type) -> bool:
    """Whether objects of a class are data in Python: no tensors, modules, functions, classes."""
    if not can_be_looked_at(kind):
        return False
    if issubclass(kind, Tensor | nn.Module | type | types.FunctionType | types.ModuleType):
        return False
    return not _is_of_python(kind) and kind.__dictoffset__ != 0


def _is_slotted(kind: type) -> bool:
    """As a `dataclass(slots=True)`."""
    if not can_be_looked_at(kind) or issubclass(kind, Tensor | nn.Module) or _is_of_python(kind):
        return False
    return bool(kind.__flags__ & _IN_PYTHON) and "__slots__" in vars(kind)


def _is_of_python(kind: type) -> bool:
    package = kind.__module__.partition(".")[0] if type(kind.__module__) is str else "torch"
    if package in sys.stdlib_module_names - {"types", "argparse", "__main__"}:  # a logger, a lock
        return True
    return package == "torch"


def same_object(one: Any, other: Any) -> bool:
    """Whether a forward goes on alike with either: one object, or two that run the same code and
    hold the same. No method of theirs is called."""
    return _Comparison().is_same(one, other)


class _Comparison:
    def __init__(self) -> None:
        # Held, so that no other object has their id.
        self._begun: dict[tuple[int, int], tuple[Any, Any]] = {}

    def is_same(self, one: Any, other: Any) -> bool:
        try:
            return self._same(one, other)
        except RecursionError:
            return False

    def _same(self, one: Any, other: Any) -> bool:
        if one is other or (id(one), id(other)) in self._begun:
            return True
        kind = type(one)
        self._begun[id(one), id(other)] = one, other
        if len(self._begun) > MOST_COMPARED:
            return False
        if is_constant(one) and is_constant(other):
            return same_constant(one, other)
        if is_array(one) and not is_same_array(one, other):
            return False
        if is_array(one):  # what a class adds to it, such as a mask
            return self._same(parts_of_object(one), parts_of_object(other))
        if issubclass(kind, type):
            return issubclass(type(other), type) and self._same_class(one, other)
        if kind is not type(other) and not self._same_class(kind, type(other)):
            return False
        if kind is list or kind is tuple:
            return len(one) == len(other) and all(map(self._same, one, other))
        if kind is dict:
            return self._same([*one.items()], [*other.items()])
        if issubclass(kind, (*_CALLED, *_IN_CLASSES)):
            return self._same_called(kind, one, other)
        if issubclass(kind, (*_OF_TORCH, *_OPERATORS)):
            return bool(one == other)
        if issubclass(kind, enum.Enum):
            return self._same(one._name_, other._name_) and self._same(one._value_, other._value_)
        return is_object(one) and self._same_parts(kind, one, other)

    def _same_called(self, kind: type, one: Any, other: Any) -> bool:
        if issubclass(kind, types.FunctionType):
            return self._same_function(one, other)
        if issubclass(kind, types.MethodType):
            names: tuple[str, ...] = ("__self__", "__func__")
        elif issubclass(kind, functools.partial):
            names = ("func", "args", "keywords")
        elif issubclass(kind, property):
            names = ("fget",)
        elif issubclass(kind, _IN_CLASSES):
            names = ("__func__",)
        else:  # PyTorch and Python make some anew at each look
            owner, its_owner = (getattr(f, "__self__", None) for f in (one, other))
            return bool(owner is not None and owner is its_owner and one.__name__ == other.__name__)
        return all(self._same(getattr(one, name), getattr(other, name)) for name in names)

    def _same_function(self, one: types.FunctionType, other: types.FunctionType) -> bool:
        """As another one that the same line makes, or the same text again."""
        return (
            one.__code__ == other.__code__
            and one.__globals__.get("__name__") == other.__globals__.get("__name__")
            and self._same(one.__defaults__, other.__defaults__)
            and self._same(one.__kwdefaults__, other.__kwdefaults__)
            and self._same(_contents(one), _contents(other))
        )

    def _same_class(self, one: type, other: type) -> bool:
        """As one that the same text makes again, in a notebook."""
        if (one.__module__, one.__qualname__) != (other.__module__, other.__qualname__):
            return False
        parts, others = (
            {
                name: part
                for name, part in vars(kind).items()
                if name not in _UNCOMPARED and type(part) is not types.MemberDescriptorType
            }
            for kind in (one, other)
        )
        return self._same(list(one.__bases__), list(other.__bases__)) and self._same(parts, others)

    def _same_parts(self, kind: type, one: Any, other: Any) -> bool:
        for base in (dict, list, tuple):
            if issubclass(kind, base):
                each = dict.items if base is dict else base.__iter__
                if not self._same([*each(one)], [*each(other)]):
                    return False
        if issubclass(kind, set | frozenset | int | float | complex | str | bytes):
            return False
        mine, its = parts_of_object(one), parts_of_object(other)
        if mine is None or its is None:
            return False
        return self._same(_in_slots(one), _in_slots(other)) and self._same(mine, its)


_UNCOMPARED = frozenset(("__dict__", "__weakref__", "__doc__", "__annotations__", "_abc_impl"))


def parts_of_object(value: object) -> dict[str, Any] | None:
    """The attributes of a plain object, or what its slots hold; None for other values."""
    kind = type(value)
    if is_plain(kind):
        try:
            held = object.__getattribute__(value, "__dict__")
        except Exception:  # a proxy of what is not there yet
            return None
        return held if type(held) is dict else None
    return _in_slots(value) if _is_slotted(kind) else None


def _in_slots(value: object) -> dict[str, Any]:
    kind = type(value)
    held = {}
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if type(slot) is types.MemberDescriptorType:
                try:
                    held[name] = slot.__get__(value, kind)
                except AttributeError:  # nothing in it
                    continue
    return held


def _contents(function: types.FunctionType) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not there yet
            contents.append(None)
    return contents


def text_of(value: object, most: int = 80) -> str:
    """For a message; runs no code of an object's own."""
    kind = type(value)
    if is_array(value):
        text = text_of_array(value)
    elif is_constant(value):
        try:
            text = repr(copied_constant(value))
        except Exception:  # of a class of the user's that is a number
            text = f"{kind.__qualname__}()"
    elif issubclass(kind, enum.Enum):
        text = f"{kind.__qualname__}.{cast('enum.Enum', value)._name_}"
    elif issubclass(kind, (types.FunctionType, types.MethodType, *_BUILT_IN)):
        is_built_in = issubclass(kind, _BUILT_IN)
        text = f"function {getattr(value, '__name__' if is_built_in else '__qualname__', '')}"
    elif issubclass(kind, type):
        of = cast("type", value)
        text = f"<class '{of.__module__}.{of.__qualname__}'>"
    elif issubclass(kind, (*_OF_TORCH, *_OPERATORS)):
        text = str(value)
    elif issubclass(kind, functools.partial):
        text = f"partial({text_of(cast('functools.partial[Any]', value).func)})"
    elif is_table(value):
        text = f"{kind.__name__} of objects"
    else:
        text = f"object of {kind.__qualname__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."
