"""Constants and objects outside of modules that the Python of a forward may read or change.

A forward reads more than its modules hold: globals and closures of its code, attributes of classes,
and of plain objects that are kept on modules (a configuration). A planned step goes on with what
they were when it was captured. `outside_of` names those that are constants (numbers, texts,
switches, small containers of them), as far as code of the user's names them; the code of libraries
is not followed. It names too where an object stands (a function, a member of an `Enum`, a
configuration) that code which a forward may run reads, and does not assign itself.
`generators_of` has the generators of Python and NumPy that modules hold.

Example: `scale = 2.0` beside a class in `net.py`, whose forward multiplies by it, is `net.scale`.
"""

from __future__ import annotations

import argparse
import dis
import enum
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from torch import nn

from .constants import ABSENT, can_be_looked_at, is_constant, is_one_of
from .contents import Contents
from .libraries import is_library, is_library_module
from .objects import arrays_in, is_object, is_plain, is_table, parts_of_object, text_of
from .reached import Reached, functions_in, parts_of, reached_from

__all__ = [
    "OF_MODULES",
    "Outside",
    "OwnGenerator",
    "generators_of",
    "noted",
    "outside_of",
    "put_back",
    "reached_by",
]

OF_MODULES = frozenset(vars(nn.Module()))
"""What PyTorch itself keeps on a module."""
MOST_FUNCTIONS = 500
"""That are followed from one model."""
MOST_PLACES = 1000
"""Beyond these, objects in lists are not followed."""
DEEPEST = 4
"""Objects in objects."""

_UNREAD = frozenset(("use_cache",))
"""Of configurations: what a capture turns off by itself."""


class _Looked:
    """An object by its attributes, those of its class included."""

    def __init__(self, of: object):
        self.of = of

    def __getitem__(self, key: str) -> Any:
        return getattr(self.of, key)


class _Slots(_Looked):
    """An object by what its slots hold."""


class _Length:
    """A list by how many it holds."""

    def __init__(self, of: list[Any]):
        self.of = of

    def __getitem__(self, _: object) -> int:
        return len(self.of)


@dataclass(frozen=True, eq=False)
class Outside:
    """A constant, or an object: what holds it, and under which key. Of a cell there is one."""

    name: str
    holder: Any
    key: Any
    is_object: bool = False

    def value(self) -> Any:
        """ABSENT where there is none any more."""
        try:
            if isinstance(self.holder, types.CellType):
                return self.holder.cell_contents
            return self.holder[self.key]
        except (LookupError, AttributeError, ValueError):
            return ABSENT

    def put(self, value: Any) -> None:
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, _Slots):
            object.__setattr__(self.holder.of, self.key, value)
        elif isinstance(self.holder, _Looked):
            vars(self.holder.of).pop(self.key, None)  # what stood there was the class's
        elif isinstance(self.holder, dict | list):
            self.holder[self.key] = value


@dataclass(frozen=True, eq=False)
class _OfClass(Outside):
    """One that a class holds, which lets nobody write into its dictionary."""

    kind: type = object

    def put(self, value: Any) -> None:
        setattr(self.kind, self.key, value)


def outside_of(model: nn.Module, own: Mapping[str, Any] | None = None) -> list[Outside]:
    """Those of a model, each once, in one order. `own` are attributes in place of the model's."""
    return list(_OutsideWalk(reached_by(model)).of(model, own or {}))


def reached_by(model: nn.Module) -> Reached:
    """What a call of the model may read, objects that its modules hold included."""
    held = (value for module in model.modules() for value in _held_by(module).values())
    return reached_from(model, [value for value in held if is_object(value)])


def _held_by(module: nn.Module) -> dict[str, Any]:
    """What the user keeps on a module."""
    return {key: value for key, value in vars(module).items() if key not in OF_MODULES}


def noted(model: nn.Module) -> Mapping[Outside, tuple[Any, Contents | None]]:
    """For `put_back`: each constant with what containers hold, and each object."""
    return {
        p: (v, Contents([v]) if not p.is_object or is_table(v) or arrays_in(v) else None)
        for p, v in ((place, place.value()) for place in outside_of(model))
    }


def put_back(held: Mapping[Outside, tuple[Any, Contents | None]]) -> None:
    """Makes constants and objects what they are in `held`; containers stay the objects that they
    were, also those within others."""
    for place, (value, contents) in held.items():
        if contents is not None:
            contents.put_back()
        if place.value() is not value:
            place.put(value)


class _OutsideWalk:
    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._places: dict[tuple[int, Any], Outside] = {}
        self._seen: set[int] = set()
        self._dicts: set[int] = set()
        self._functions: list[types.FunctionType] = []

    def of(self, model: nn.Module, own: Mapping[str, Any]) -> Iterator[Outside]:
        kinds = dict.fromkeys(k for m in model.modules() for k in type(m).__mro__)
        for kind in kinds:
            self._class(kind)
        for path, module in model.named_modules():
            for key, value in _held_by(module).items():
                if not path:
                    value = own.get(key, value)
                if not is_one_of(type(value), (list, tuple, dict)) or self._reached.reads(key):
                    self._held(f"{path}.{key}" if path else key, value)
        while self._functions and len(self._seen) < 10 * MOST_FUNCTIONS:
            self._function(self._functions.pop())
        yield from self._places.values()

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True

    def _held(self, name: str, value: Any, depth: int = 0) -> None:
        """What a value leads to: a forward that was set, say, or a method of a configuration."""
        self._functions += functions_in(value)
        if issubclass(type(value), type):
            self._class(value)
        elif issubclass(type(value), types.MethodType):
            self._object(f"{name}.__self__", value.__self__)
        else:
            self._object(name, value, depth)

    def _put(self, name: str, holder: Any, key: str, value: Any, kind: type | None = None) -> None:
        """An object, where a forward may read it."""
        if (is_object(value) or is_table(value)) and self._reached.reads(key):
            place = (id(holder if kind is None else kind), key)
            self._places[place] = (
                Outside(name, holder, key, is_object=True)
                if kind is None
                else _OfClass(name, holder, key, is_object=True, kind=kind)
            )

    def _class(self, kind: type) -> None:
        module = sys.modules.get(kind.__module__) if can_be_looked_at(kind) else sys
        if is_library_module(module) or not self._is_new(kind):
            return
        for key, value in vars(kind).items():
            self._functions += functions_in(value)
            if key.startswith("__"):
                continue
            name = f"{kind.__qualname__}.{key}"
            if is_constant(value):
                self._places[id(kind), key] = _OfClass(name, vars(kind), key, kind=kind)
            else:
                self._put(name, vars(kind), key, value, kind)
                if self._reached.reads(key):
                    self._object(name, value)

    def _object(self, name: str, value: Any, depth: int = 0) -> None:
        """The attributes of a plain object; those of its class are looked up through it."""
        kind = type(value)
        if is_one_of(kind, (list, tuple, dict)) and is_table(value):
            self._table(name, value, depth)
        elif issubclass(kind, dict) and kind.__getitem__ is dict.__getitem__:
            self._items(name, value, depth)
        held = parts_of_object(value)
        if held is None or issubclass(kind, enum.Enum) or not self._is_new(value):
            return
        holder: Any = held if is_plain(kind) else _Slots(value)
        is_ours = _is_users(kind)
        for key, part in held.items():
            # What a configuration of a library leaves open, its code may fill in (the kind of
            # problem, say), and functions of that code, which are not followed, may read others.
            is_read = key in self._reached.names if depth or is_ours else True
            is_open = part is None and not (is_ours and self._reached.reads(key))
            if is_constant(part) and key not in _UNREAD and is_read and not is_open:
                self._places[id(holder), key] = Outside(f"{name}.{key}", holder, key)
            elif self._reached.reads(key):
                self._put(f"{name}.{key}", holder, key, part)
                if depth < DEEPEST:
                    self._object(f"{name}.{key}", part, depth + 1)
        looked = _Looked(value)
        of_class: dict[str, Any] = {}
        for base in filter(_is_users, kind.__mro__):
            of_class = {**vars(base), **of_class}
        for key, part in of_class.items():
            if key in self._reached.names:
                self._functions += functions_in(part)
            if key in held or key.startswith("__"):
                continue
            if is_constant(part):
                self._places[id(looked), key] = Outside(f"{name}.{key}", looked, key)
            elif not hasattr(type(part), "__get__"):
                self._put(f"{name}.{key}", looked, key, part)

    def _table(self, name: str, held: Any, depth: int) -> None:
        """Objects in lists, tuples and dictionaries. Which ones stand in those of modules, at depth
        0, is looked at with the modules; under which keys of others, where the code has those."""
        if depth > DEEPEST or len(self._places) > MOST_PLACES or not self._is_new(held):
            return
        if depth and type(held) is list:
            self._places[id(held), len] = Outside(f"len({name})", _Length(held), len)
        for key, part in held.items() if type(held) is dict else enumerate(held):
            if depth and type(key) is str and key not in self._reached.names:
                continue
            of = f"{name}[{text_of(key)}]"
            if depth and (is_object(part) or is_constant(part)):
                self._places[id(held), key] = Outside(of, held, key, is_object=is_object(part))
            self._held(of, part, depth + 1)

    def _items(self, name: str, held: dict[Any, Any], depth: int) -> None:
        """Of a dictionary, what stands under keys that are in the code."""
        if id(held) in self._dicts or depth > DEEPEST:
            return
        self._dicts.add(id(held))
        for key in sorted(self._reached.names.intersection(k for k in held if type(k) is str)):
            part = held[key]
            if part is not None and is_constant(part):
                self._places[id(held), key] = Outside(f"{name}[{key!r}]", held, key)
            else:
                self._put(f"{name}[{key!r}]", held, key, part)
                self._object(f"{name}[{key!r}]", part, depth + 1)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if not self._is_new(function):
            return
        if is_library(code.co_filename):
            self._functions += functions_in(getattr(function, "__wrapped__", None))
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with suppress(ValueError):  # not there yet
                self._named(f"{function.__qualname__}.{name}", cell, name, cell.cell_contents)
        spaces = [(function.__globals__, _globals_of(code))]
        for space, names in spaces:
            for name in sorted(names & space.keys()):
                value = space[name]
                if issubclass(type(value), types.ModuleType):
                    if not is_library_module(value) and self._is_new(value):
                        spaces.append((vars(value), frozenset(_names_of(code))))
                else:
                    self._named(f"{space.get('__name__', '')}.{name}", space, name, value)

    def _named(self, name: str, holder: Any, key: str, value: Any) -> None:
        if is_constant(value):
            self._places[id(holder), key] = Outside(name, holder, key)
            return
        self._held(name, value, depth=int(is_table(value)))
        self._put(name, holder, key, value)


def _is_users(kind: type) -> bool:
    """Whether what stands in a class is the user's; a bare namespace is."""
    is_bare = is_one_of(kind, (types.SimpleNamespace, argparse.Namespace))
    module = sys.modules.get(kind.__module__)
    return kind is not object and (is_bare or not is_library_module(module))


@cache
def _globals_of(code: types.CodeType) -> frozenset[str]:
    """The names of globals that code reads."""
    steps = (step for part in parts_of(code) for step in dis.get_instructions(part))
    return frozenset(
        step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    )


def _names_of(code: types.CodeType) -> Iterator[str]:
    for part in parts_of(code):
        yield from part.co_names


# -- generators -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnGenerator:
    """A generator of Python's or NumPy's that a module holds."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]

    def condensed(self) -> tuple[str, str]:
        """Its state, comparable."""
        return "generator", sha256(pickle.dumps(self.get())).hexdigest()


def generators_of(model: nn.Module) -> list[OwnGenerator]:
    """Those that are attributes of modules."""
    generators = []
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            name = f"{path}.{key}" if path else key
            if issubclass(type(value), random.SystemRandom):
                continue  # has no state
            if issubclass(type(value), random.Random):
                generators.append(OwnGenerator(name, value.getstate, value.setstate))
            elif type.__getattribute__(type(value), "__module__").startswith("numpy.random"):
                bits = getattr(value, "bit_generator", value)
                if hasattr(value, "get_state"):  # of the older kind
                    generators.append(OwnGenerator(name, value.get_state, value.set_state))
                elif hasattr(bits, "state") and hasattr(bits, "jumped"):  # no SeedSequence
                    generators.append(OwnGenerator(name, *_of_bits(bits)))
    return generators


def _of_bits(bits: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: deepcopy(bits.state), lambda state: setattr(bits, "state", state)
