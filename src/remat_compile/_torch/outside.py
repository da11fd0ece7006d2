"""Constants outside of modules that the Python of a forward may read or change.

A forward reads more than its modules hold: globals and closures of its code, attributes of classes,
and of plain objects that are kept on modules (a configuration). A planned step goes on with what
they were when it was captured. `outside_of` names those that are constants (numbers, texts,
switches, small containers of them), as far as code of the user's names them; the code of libraries
is not followed. `generators_of` has the generators of Python and NumPy that modules hold.

Example: `scale = 2.0` beside a class in `net.py`, whose forward multiplies by it, is `net.scale`.
"""

from __future__ import annotations

import dis
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

from torch import Tensor, nn

from .constants import ABSENT, is_constant, same_constant
from .libraries import is_library, is_library_module

__all__ = [
    "OF_MODULES",
    "Outside",
    "OwnGenerator",
    "generators_of",
    "noted",
    "outside_of",
    "put_back",
]

OF_MODULES = frozenset(vars(nn.Module()))
"""What PyTorch itself keeps on a module."""
MOST_FUNCTIONS = 500
"""That are followed from one model."""

_UNREAD = frozenset(("use_cache",))
"""Of configurations: what a capture turns off by itself."""


class _Looked:
    """An object by its attributes, those of its class included."""

    def __init__(self, of: object):
        self.of = of

    def __getitem__(self, key: str) -> Any:
        return getattr(self.of, key)


@dataclass(frozen=True, eq=False)
class Outside:
    """A constant: what holds it, and under which key. Of a cell there is one."""

    name: str
    holder: Any
    key: str

    def value(self) -> Any:
        """ABSENT where there is none any more."""
        try:
            if isinstance(self.holder, types.CellType):
                return self.holder.cell_contents
            return self.holder[self.key]
        except (KeyError, AttributeError, ValueError):
            return ABSENT

    def put(self, value: Any) -> None:
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, _Looked):
            vars(self.holder.of).pop(self.key, None)  # what stood there was the class's
        elif isinstance(self.holder, dict):
            self.holder[self.key] = value


@dataclass(frozen=True, eq=False)
class _OfClass(Outside):
    """One that a class holds, which lets nobody write into its dictionary."""

    kind: type = object

    def put(self, value: Any) -> None:
        setattr(self.kind, self.key, value)


def outside_of(model: nn.Module) -> list[Outside]:
    """Those of a model, each once, in one order."""
    return list(_OutsideWalk().of(model))


def put_back(held: Mapping[Outside, tuple[Any, Any]]) -> None:
    """Makes constants what they are in `held`; containers stay the objects that they were."""
    for place, (value, then) in held.items():
        if place.value() is value and same_constant(value, then):
            continue
        match value:
            case dict() | set():
                value.clear()
                value.update(then)
            case list():
                value[:] = then
        place.put(value)


def noted(model: nn.Module) -> dict[Outside, tuple[Any, Any]]:
    """For `put_back`: each constant with a copy of what it holds."""
    values = ((place, place.value()) for place in outside_of(model))
    return {place: (value, deepcopy(value)) for place, value in values}


class _OutsideWalk:
    def __init__(self) -> None:
        self._places: dict[tuple[int, str], Outside] = {}
        self._seen: set[int] = set()
        self._functions: list[types.FunctionType] = []

    def of(self, model: nn.Module) -> Iterator[Outside]:
        kinds = dict.fromkeys(k for m in model.modules() for k in type(m).__mro__)
        for kind in kinds:
            self._class(kind)
        for path, module in model.named_modules():
            for key, value in vars(module).items():
                if key in OF_MODULES:
                    continue
                self._object(f"{path}.{key}" if path else key, value)
                if isinstance(value, types.FunctionType):  # a forward that was set
                    self._functions.append(value)
        while self._functions and len(self._seen) < 10 * MOST_FUNCTIONS:
            self._function(self._functions.pop())
        yield from self._places.values()

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True

    def _class(self, kind: type) -> None:
        if is_library_module(sys.modules.get(kind.__module__)) or not self._is_new(kind):
            return
        for key, value in vars(kind).items():
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            inner = inner.fget if isinstance(inner, property) else inner
            if isinstance(inner, types.FunctionType):
                self._functions.append(inner)
            elif is_constant(value) and not key.startswith("__"):
                name = f"{kind.__qualname__}.{key}"
                self._places[id(kind), key] = _OfClass(name, vars(kind), key, kind)

    def _object(self, name: str, value: Any) -> None:
        """The attributes of a plain object; those of its class are looked up through it."""
        kind = type(value)
        if not _is_plain(kind) or not self._is_new(value):
            return
        held, is_ours = vars(value), not is_library_module(sys.modules.get(kind.__module__))
        for key, part in held.items():
            # What a configuration leaves open, a forward may fill in (the kind of problem, say).
            if part is not None and is_constant(part) and key not in _UNREAD:
                self._places[id(held), key] = Outside(f"{name}.{key}", held, key)
        of_class = vars(kind).items() if is_ours else ()
        for key, part in of_class:
            if is_constant(part) and key not in held and not key.startswith("__"):
                self._places[id(held), key] = Outside(f"{name}.{key}", _Looked(value), key)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if is_library(code.co_filename) or not self._is_new(function):
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with suppress(ValueError):  # not there yet
                self._named(f"{function.__qualname__}.{name}", cell, name, cell.cell_contents)
        spaces = [(function.__globals__, _globals_of(code))]
        for space, names in spaces:
            for name in sorted(names & space.keys()):
                value = space[name]
                if isinstance(value, types.ModuleType):
                    if not is_library_module(value) and self._is_new(value):
                        spaces.append((vars(value), frozenset(_names_of(code))))
                else:
                    self._named(f"{space.get('__name__', '')}.{name}", space, name, value)

    def _named(self, name: str, holder: Any, key: str, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._functions.append(value)
        elif isinstance(value, type):
            self._class(value)
        elif is_constant(value):
            self._places[id(holder), key] = Outside(name, holder, key)
        else:
            self._object(name, value)


def _is_plain(kind: type) -> bool:
    """Whether objects of a class are data in Python: no tensors, modules, functions, classes."""
    if issubclass(kind, Tensor | nn.Module | type | types.FunctionType | types.ModuleType):
        return False
    package = kind.__module__.partition(".")[0]
    if package in sys.stdlib_module_names - {"types", "argparse", "__main__"}:  # a logger, a lock
        return False
    return package != "torch" and kind.__dictoffset__ != 0


@cache
def _globals_of(code: types.CodeType) -> frozenset[str]:
    """The names of globals that code reads."""
    steps = (step for part in _parts_of(code) for step in dis.get_instructions(part))
    return frozenset(
        step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    )


def _names_of(code: types.CodeType) -> Iterator[str]:
    for part in _parts_of(code):
        yield from part.co_names


def _parts_of(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            yield from _parts_of(held)


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
            if isinstance(value, random.SystemRandom):
                continue  # has no state
            if isinstance(value, random.Random):
                generators.append(OwnGenerator(name, value.getstate, value.setstate))
            elif type(value).__module__.startswith("numpy.random"):
                bits = getattr(value, "bit_generator", value)
                if hasattr(value, "get_state"):  # of the older kind
                    generators.append(OwnGenerator(name, value.get_state, value.set_state))
                elif hasattr(bits, "state") and hasattr(bits, "jumped"):  # no SeedSequence
                    generators.append(OwnGenerator(name, *_of_bits(bits)))
    return generators


def _of_bits(bits: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: deepcopy(bits.state), lambda state: setattr(bits, "state", state)
