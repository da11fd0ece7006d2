"""Python state that a call of a model may change: kept as it was, compared, and put back.

A capture runs the Python of a forward on fake tensors, and leaves no trace of that. `PythonState`
walks from the attributes of modules, and from the globals and closures that their own code names,
through containers, plain objects, arrays of NumPy and random generators.

Example: a forward that does `self.calls += 1` and `SEEN.append(x)` has the effects `calls` and
`net.SEEN`; `put_back` undoes both, in place.
"""

from __future__ import annotations

import random
import site
import sys
import sysconfig
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from ..trace.places import LIBRARIES

OF_MODULES = frozenset(vars(nn.Module()))
MOST_PARTS = 20_000
"""Limit on the objects that are looked at."""
MOST_BYTES = 1 << 24
"""Limit on an array of NumPy that is copied."""
_CONTAINERS = (list, OrderedDict, dict, set, deque)
_SKIPPED = (
    "torch",
    "remat_compile",
    "builtins",
    "threading",
    "logging",
    "_thread",
    "weakref",
    "functools",
)
_TURNED = ("use_cache",)  # by a capture itself, in configurations
_MISSING = object()


@dataclass(frozen=True, eq=False)
class _Part:
    """One holder of state: how its content is read, as keys and values, and written."""

    name: str
    read: Callable[[], Mapping[Any, Any]]
    write: Callable[[Mapping[Any, Any]], None]
    has_names: bool
    is_users: bool = True  # and not what PyTorch keeps on a module

    def effects(self, then: Mapping[Any, Any]) -> Iterator[str]:
        """Yield the names of what changed, with both values where those are short."""
        now = self.read()
        if not self.has_names:
            if not _are_same(now, then):
                yield self.name
            return
        for key in chain(now, then.keys() - now.keys()):
            if (not self.is_users and key in OF_MODULES) or key in _TURNED:
                continue
            old, new = then.get(key, _MISSING), now.get(key, _MISSING)
            if not _is_same(old, new):
                yield f"{self.name}.{key}" if self.name else str(key)


class PythonState:
    """The state that the Python of `model` may change, as it is at this moment."""

    def __init__(self, model: nn.Module):
        self._parts: dict[int, tuple[_Part, Mapping[Any, Any]]] = {}
        self._kept: list[Any] = []  # so that no id is given twice
        self._waiting: list[tuple[str, Any]] = []
        self._aliases = defaultdict[int, list[str]](list)  # further names of a part
        self._codes: set[CodeType] = set()
        self._spaces: set[tuple[int, frozenset[str]]] = set()
        for path, module in model.named_modules():
            held = vars(module)
            refill = partial(_refill, held)
            self._add(_Part(path, partial(dict, held), refill, True, False), held)
            for key, value in held.items():
                name = f"{path}.{key}" if path else key
                if key not in OF_MODULES:
                    self._waiting.append((name, value))
                elif type(value) in _CONTAINERS:
                    fill = partial(_fill, value)
                    self._add(_Part(name, partial(_content, value), fill, False, False), value)
                    if issubclass(type(value), dict):  # hooks
                        self._waiting += [(name, hook) for hook in dict.values(value)]
            for kind in type(module).__mro__:
                self._class(kind)
        while self._waiting and len(self._parts) < MOST_PARTS:
            with suppress(Exception):  # an object of the user's may raise when it is looked at
                self._visit(*self._waiting.pop())

    def effects(self) -> dict[str, str]:
        """Return the changes until now: by name, in words. Of what PyTorch keeps on modules
        (buffers that are replaced, hooks), the text is empty."""
        effects: dict[str, str] = {}
        for of, (part, then) in self._parts.items():
            now = part.read()
            for name in part.effects(then):
                key = name.rpartition(".")[2]
                old, new = then.get(key), now.get(key)
                is_short = part.has_names and _is_scalar(old) and _is_scalar(new) and key in then
                text = f"{name} (from {old!r} to {new!r})" if is_short else name
                effects[name] = text if part.has_names or part.is_users else ""
                for alias in self._aliases[of]:
                    effects.setdefault(alias + name[len(part.name) :], "")
        return effects

    def put_back(self) -> None:
        """Makes everything what it was; containers stay the objects that they were."""
        for part, then in self._parts.values():
            if not _are_same(part.read(), then):
                part.write(then)

    def replaces_tensors(self) -> bool:
        """Return whether an attribute that was a tensor is another one now."""
        return any(
            issubclass(type(value), Tensor) and now.get(key) is not value
            for now, then in ((part.read(), then) for part, then in self._parts.values())
            for key, value in then.items()
        )

    def _add(self, part: _Part, of: object) -> None:
        self._parts[id(of)] = part, part.read()
        self._kept.append(of)

    def _visit(self, name: str, value: Any) -> None:
        kind = type(value)
        if id(value) in self._parts:
            self._aliases[id(value)].append(name)
            return
        if issubclass(kind, nn.Module | Tensor | ModuleType):
            return
        if issubclass(kind, FunctionType):
            self._function(value)
        elif issubclass(kind, MethodType):
            self._waiting += [(name, value.__self__), (name, value.__func__)]
        elif issubclass(kind, partial):
            self._waiting += [(name, value.func), (f"{name}.keywords", value.keywords)]
        elif issubclass(kind, tuple):
            self._waiting += [(f"{name}[{at}]", part) for at, part in enumerate(_parts(value))]
        elif issubclass(kind, _CONTAINERS):
            self._add(_Part(name, partial(_content, value), partial(_fill, value), False), value)
            values = dict.values(value) if issubclass(kind, dict) else _parts(value)
            self._waiting += [(f"{name}[{at}]", part) for at, part in enumerate(values)]
        elif (own := _own_state(value)) is not None:
            self._add(_Part(name, *own, False), value)
        elif issubclass(kind, type):
            self._class(value)
        elif not kind.__module__.startswith(_SKIPPED):
            self._object(name, value)

    def _object(self, name: str, value: Any) -> None:
        held = getattr(value, "__dict__", None)
        if type(held) is dict:
            self._add(_Part(name, partial(dict, held), partial(_refill, held), True), value)
            self._waiting += [(f"{name}.{key}", part) for key, part in held.items()]
        for kind in type(value).__mro__:
            self._class(kind)

    def _class(self, kind: type) -> None:
        """State in a class of the user's, and what its functions name."""
        module = sys.modules.get(kind.__module__)
        if id(kind) in self._parts or _is_library_module(module):
            return

        def read() -> dict[str, Any]:
            return {
                key: value
                for key, value in vars(kind).items()
                if not key.startswith("__") and not hasattr(type(value), "__get__")
            }

        def write(then: Mapping[str, Any]) -> None:
            for key in read().keys() - then.keys():
                delattr(kind, key)
            for key, value in then.items():
                setattr(kind, key, value)

        self._add(_Part(kind.__qualname__, read, write, True), kind)
        for key, value in vars(kind).items():
            if not key.startswith("__") or type(value) is FunctionType:
                plain = getattr(value, "__func__", getattr(value, "fget", value))
                self._waiting.append((f"{kind.__qualname__}.{key}", plain))

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        for cell in function.__closure__ or ():
            self._cell(function.__qualname__, cell)
        if code in self._codes or _is_library(code.co_filename):
            return
        self._codes.add(code)
        names = {name for part in _codes_in(code) for name in part.co_names}
        self._space(function.__globals__, names)

    def _cell(self, name: str, cell: CellType) -> None:
        if id(cell) in self._parts:
            return

        def read() -> dict[str, Any]:
            try:
                return {"cell": cell.cell_contents}
            except ValueError:  # what it is to hold is not there yet
                return {}

        def write(then: Mapping[str, Any]) -> None:
            if then:
                cell.cell_contents = then["cell"]

        self._add(_Part(name, read, write, False), cell)
        self._waiting += [(name, value) for value in read().values()]

    def _space(self, space: dict[str, Any], names: set[str]) -> None:
        """The globals of a module of the user's that its code names."""
        if (id(space), frozenset(names)) in self._spaces:
            return
        self._spaces.add((id(space), frozenset(names)))
        of = str(space.get("__name__", ""))
        known = sorted(names & space.keys())

        def read() -> dict[str, Any]:
            return {name: space[name] for name in known if name in space}

        self._add(_Part(of, read, space.update, True), read)
        for name in known:
            value = space[name]
            if issubclass(type(value), ModuleType):
                if not _is_library_module(value) and vars(value) is not space:
                    self._space(vars(value), names)
            else:
                self._waiting.append((f"{of}.{name}", value))


def _own_state(
    value: Any,
) -> tuple[Callable[[], Mapping[Any, Any]], Callable[[Mapping[Any, Any]], None]] | None:
    """Return a reader and a writer of the state of an array or a generator; None for anything
    else."""
    numpy = sys.modules.get("numpy")
    kind = type(value)
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        return lambda: {"state": value.getstate()}, lambda then: value.setstate(then["state"])
    if numpy is None:
        return None
    if kind is numpy.ndarray and value.flags.writeable and value.nbytes <= MOST_BYTES:
        if value.dtype.hasobject:
            return None

        def write(then: Mapping[Any, Any]) -> None:
            value[...] = numpy.frombuffer(then["bits"], value.dtype).reshape(value.shape)

        return lambda: {"bits": value.tobytes()}, write
    if kind is numpy.random.RandomState:
        return (
            lambda: {"state": str(value.get_state()), "whole": _GeneratorState(value.get_state())},
            lambda then: value.set_state(then["whole"].of),
        )
    if kind is numpy.random.Generator:
        bits = value.bit_generator
        return (
            lambda: {"state": str(bits.state), "whole": _GeneratorState(bits.state)},
            lambda then: setattr(bits, "state", then["whole"].of),
        )
    return None


@dataclass(frozen=True, eq=False)
class _GeneratorState:
    """A state of a generator, which its text stands for in comparisons."""

    of: Any


def _parts(value: Any) -> list[Any]:
    """Return the elements of a container, as the built-in class has them: one of the user's may do
    anything."""
    kind: Any = next(k for k in (*_CONTAINERS, tuple) if issubclass(type(value), k))
    return [*kind.__iter__(value)]


def _content(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, dict):
        kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        return dict(enumerate(kind.items(value)))
    parts = _parts(value)
    return {id(part): part for part in parts} if isinstance(value, set) else dict(enumerate(parts))


def _fill(value: Any, then: Mapping[Any, Any]) -> None:
    kind: Any = next(k for k in _CONTAINERS if issubclass(type(value), k))
    kind.clear(value)
    if kind in (list, deque):
        kind.extend(value, then.values())
    else:
        kind.update(value, then.values())


def _refill(held: dict[str, Any], then: Mapping[str, Any]) -> None:
    held.clear()
    held.update(then)


def _are_same(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> bool:
    if len(now) != len(then):
        return False
    return all(key in now and _is_same(now[key], value) for key, value in then.items())


def _is_same(old: Any, new: Any) -> bool:
    if type(old) is tuple and type(new) is tuple:  # a pair of a dictionary
        return len(old) == len(new) and all(map(_is_same, old, new))
    if _is_scalar(old) and _is_scalar(new):
        return type(old) is type(new) and (old == new or old != old)
    if type(old) is bytes or type(old) is _GeneratorState:
        return type(new) is _GeneratorState or bool(old == new)
    return old is new


def _is_scalar(value: Any) -> bool:
    return value is None or issubclass(type(value), bool | int | float | str)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes_in(part)


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return (*LIBRARIES, *(paths[name] for name in names), *site.getsitepackages())


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", *_library_folders()))


def _is_library_module(module: ModuleType | None) -> bool:
    if getattr(module, "__name__", "__main__") == "__main__":  # a notebook has no file
        return module is None
    file = getattr(module, "__file__", None)
    return file is None or _is_library(file)
