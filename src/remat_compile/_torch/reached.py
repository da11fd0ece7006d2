"""Names in code that a call of a model may run: what it can read, and what it assigns.

From the forwards of its modules and their hooks on, to the methods and functions that they name.
Where a class of the model has a method of that name, it is taken to be called. The functions that
code of libraries names are not followed, methods of their modules are.

Example: of `def forward(self, x): return self.act(x) * self.scale()` the names are those three, and
those in the method `scale` of any class of the model.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cached_property, lru_cache, partial
from typing import Any

from torch import nn

from .constants import can_be_looked_at
from .hooks import KINDS
from .libraries import is_library, is_library_module

__all__ = ["Reached", "functions_in", "parts_of", "reached_from"]

BEGINNINGS = ("forward", "__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__")
"""Methods of modules that no code needs to name."""
BY_TEXT = frozenset(("getattr", "vars", "__dict__", "attrgetter", "eval", "exec"))
"""What reads attributes whose names do not stand in the code."""
ASKS = frozenset(("getattr", "hasattr"))
"""What attributes that are not there may be asked for with."""
MOST_FUNCTIONS = 2000
"""That are followed from one model."""

_STORES = frozenset(dis.opmap[name] for name in ("STORE_ATTR", "STORE_GLOBAL") if name in dis.opmap)


@dataclass(frozen=True)
class Reached:
    """`names` that code which may run has in it, those of attributes and globals that it
    `assigns`, and texts of those that it asks for (`hasattr`)."""

    names: frozenset[str]
    assigns: frozenset[str]
    asked: frozenset[str] = frozenset()
    is_all: bool = True
    """Whether all code was followed; else any name may be read."""

    def reads(self, key: str) -> bool:
        """Whether what stands under a name is the user's to replace, and matters to a call."""
        return (key in self.names or not self.is_all) and key not in self.assigns

    def may_read(self, key: str) -> bool:
        """Whether an attribute is read, as far as the code says what it reads."""
        return key in self.names or not self.is_all or not self.names.isdisjoint(BY_TEXT)


def reached_from(model: nn.Module, also: Iterable[object] = ()) -> Reached:
    """`also` are functions and objects besides that a forward may call."""
    walk = _NameWalk()
    for kind in dict.fromkeys(k for m in model.modules() for k in type(m).__mro__):
        if kind is not nn.Module and kind is not object:
            walk.of_class(kind)
    for module in model.modules():
        held = vars(module)
        walk.functions += functions_in(held.get("forward"))
        for kind_of_hook in KINDS:
            for hook in held[kind_of_hook].values():
                walk.functions += functions_in(hook)
    for value in also:
        walk.functions += functions_in(value)
        for kind in type(value).__mro__:
            if kind.__module__ not in ("builtins", "functools"):
                walk.of_class(kind)
    walk.name(BEGINNINGS)
    return walk.run()


class _NameWalk:
    def __init__(self) -> None:
        self.functions: list[types.FunctionType] = []
        self._names: set[str] = set()
        self._assigns: set[str] = set()
        self._asked: set[str] = set()
        self._waiting: dict[str, list[types.FunctionType]] = {}
        self._classes: set[type] = set()
        self._seen: set[types.CodeType] = set()

    def of_class(self, kind: type) -> None:
        """Its methods run once they are named."""
        if kind in self._classes:
            return
        self._classes.add(kind)
        for name, value in vars(kind).items():
            for function in functions_in(value):
                if name in self._names:
                    self.functions.append(function)
                else:
                    self._waiting.setdefault(name, []).append(function)

    def name(self, names: Iterable[str]) -> None:
        self._names.update(names)
        for name in names:
            self.functions += self._waiting.pop(name, ())

    def run(self) -> Reached:
        while self.functions and len(self._seen) < MOST_FUNCTIONS:
            function = self.functions.pop()
            code = function.__code__
            if code in self._seen:
                continue
            self._seen.add(code)
            names, assigns, asked = _names_in(code)
            self._assigns |= assigns
            self._asked |= asked
            self.name(names - self._names)
            self._follow(function, names)
        names, assigns, asked = map(frozenset, (self._names, self._assigns, self._asked))
        return Reached(names, assigns, asked, is_all=not self.functions)

    def _follow(self, function: types.FunctionType, names: frozenset[str]) -> None:
        for cell in function.__closure__ or ():
            try:
                self._value(cell.cell_contents)
            except ValueError:  # not there yet
                continue
        self._value(getattr(function, "__wrapped__", None))
        if is_library(function.__code__.co_filename):
            return
        space = function.__globals__
        for value in [space[name] for name in names & space.keys()]:
            self._value(value)
            if type(value) is types.ModuleType and not is_library_module(value):
                for name in names & vars(value).keys():
                    self._value(vars(value)[name])

    def _value(self, value: Any) -> None:
        self.functions += functions_in(value)
        kind: type = value if issubclass(type(value), type) else type(value)
        if can_be_looked_at(kind) and _has_users_code(kind):
            for base in kind.__mro__:
                if _has_users_code(base):
                    self.of_class(base)
            if kind is value:  # may be made
                self.functions += functions_in(vars(kind).get("__init__"))


@lru_cache(4096)
def _has_users_code(kind: type) -> bool:
    """Whether a class has code of the user's."""
    functions = (f for value in vars(kind).values() for f in functions_in(value))
    return any(not is_library(function.__code__.co_filename) for function in functions)


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Functions in Python that a call of a value, or a look at it through a class, runs."""
    for _ in range(8):
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            yield value
            return
        if issubclass(kind, staticmethod | classmethod | types.MethodType):
            value = value.__func__
        elif issubclass(kind, partial):
            value = value.func
        elif issubclass(kind, property):
            value = value.fget
        elif issubclass(kind, cached_property):
            value = value.func
        elif issubclass(kind, _lru_cache_wrapper):
            value = value.__wrapped__
        else:
            return


@lru_cache(16384)
def _names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    names: set[str] = set()
    assigns: set[str] = set()
    asked: set[str] = set()
    for part in parts_of(code):
        texts = (c for c in part.co_consts if type(c) is str and c.isidentifier())
        names.update(part.co_names, part.co_freevars, texts)
        if not ASKS.isdisjoint(part.co_names):
            asked.update(_asked_for(part))
        if code.co_name != "__init__":  # of an object that is made anew
            assigns.update(part.co_names[at] for at in _stored(part.co_code))
    return frozenset(names), frozenset(assigns), frozenset(asked)


def _asked_for(code: types.CodeType) -> Iterator[str]:
    """The first text behind each `getattr` or `hasattr`."""
    is_asking = False
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in ASKS:
            is_asking = True
        elif is_asking and step.opname == "LOAD_CONST" and type(step.argval) is str:
            is_asking = False
            yield step.argval


def _stored(code: bytes) -> Iterator[int]:
    """Places in `co_names` of what instructions assign."""
    high = 0
    for op, low in zip(code[::2], code[1::2], strict=True):
        place = high << 8 | low
        high = place if op == dis.EXTENDED_ARG else 0
        if op in _STORES:
            yield place


def parts_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of functions in it."""
    yield code
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            yield from parts_of(held)
