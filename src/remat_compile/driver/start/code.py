"""Everything that Python code may do, as one digest: of functions, classes, and what they name.

Code of the user is followed: bytecode, defaults, closures, and the globals that it names, down to
numbers and texts. Code of libraries stands for itself by its file and its line; which versions are
installed is part of the key besides. What can be described in neither way is `Unknown`, and there
is no key then.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import logging
import operator
import re
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn

from ..._torch.libraries import is_library, is_library_module, stamp
from .contents import constant, functions_of, is_patch, parts_of, shows_all, slots_of

__all__ = ["Description", "Unknown"]

MOST = 200_000
"""Values that are looked at."""

HIDING = frozenset(("eval", "exec", "compile", "globals", "locals", "__import__", "open", "input"))
"""Built-in functions through which code reaches what is not seen in it."""
OUTSIDE = frozenset(("environ", "getenv", "import_module", "reload", "settrace"))

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
CONTAINERS = (list, tuple, deque)
MAPPINGS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
IRRELEVANT = frozenset(
    (
        *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"),
        *("__abstractmethods__", "__parameters__", "__orig_bases__", "__slots__", "__slotnames__"),
    )
)
"""Entries of classes that no call depends on, or that stand elsewhere; `copy` leaves the last."""
UNREACHED = frozenset(
    (
        *("__init__", "__init_subclass__", "__repr__", "__str__", "__dir__", "__del__"),
        *("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"),
        *("__getstate__", "__setstate__"),
    )
)
"""Methods with a special name that no forward calls without naming them."""
OF_THE_PROCESS = frozenset(
    {("transformers.generation.configuration_utils", "GenerationConfig", "_original_object_hash")}
)
"""Attributes (module, class, name) that hold Python's hash of their own object, which no other
process repeats; what it was made of stands in the other attributes."""


class Unknown(Exception):
    """Something that no text describes; what, and where it was met."""


class Description:
    """Takes values in, one after the other. `places` are names of objects that are described
    elsewhere (modules and tensors of the model), by `id`."""

    def __init__(self, places: Mapping[int, str]):
        self._places = places
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # while they live, no other object has their id
        self._where: list[str] = []
        self._named: set[str] = set()
        self._modules: set[tuple[int, frozenset[str]]] = set()
        self._unreached: list[tuple[str, types.FunctionType]] = []

    def digest(self) -> str:
        """Of all that was added, and of the methods that it names."""
        while reached := [pair for pair in self._unreached if pair[0] in self._named]:
            self._unreached = [pair for pair in self._unreached if pair[0] not in self._named]
            for name, function in reached:
                self.add(function, f"method {name}")
        return self._hash.hexdigest()

    def say(self, *texts: object) -> None:
        self._hash.update(repr(texts).encode("utf-8", "surrogatepass"))

    def add(self, value: Any, name: str) -> None:
        """Unknown where `value` holds something that cannot be described; `name` is its place."""
        self._where.append(name)
        self.say(name)
        self._add(value)
        self._where.pop()

    def _unknown(self, what: str) -> Unknown:
        return Unknown(f"{'.'.join(self._where[:4])} {what}")

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in SCALARS or kind in OF_TORCH:
            self.say(kind.__name__, value)
            return
        if (place := self._places.get(id(value))) is not None:
            self.say("at", place)
            return
        if id(value) in self._seen:
            self.say("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if len(self._seen) > MOST:
            raise self._unknown("holds too much")
        self.say(kind.__module__, kind.__qualname__)
        if kind in CONTAINERS:
            self._all(value)
        elif kind in (set, frozenset):
            self._unordered(value)
        elif kind in MAPPINGS:
            self._mapping(value)
            self._add(getattr(value, "default_factory", None))
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        else:
            self._other(value)

    def _all(self, values: Iterable[Any]) -> None:
        for at, value in enumerate(values):
            self.add(value, str(at))

    def _unordered(self, values: Iterable[Any]) -> None:
        if not all(type(value) in SCALARS for value in values):
            raise self._unknown("is a set of objects")
        self.say(sorted(map(repr, values)))

    def _mapping(self, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            self._add(key)
            self.add(value, str(key) if type(key) in SCALARS else "key")

    def _other(self, value: Any) -> None:
        match value:
            case Tensor():
                raise self._unknown("is a tensor that is no parameter, buffer or argument")
            case nn.Module():
                raise self._unknown("is a module outside of the model")
            case types.ModuleType():
                self._module(value, frozenset())
            case types.MethodType():
                self._add(value.__func__)
                self._add(value.__self__)
            case _ if isinstance(value, BUILT_IN):
                self._built_in(value)
            case functools.partial():
                self._all((value.func, value.args, value.keywords))
            case property():
                self._all((value.fget, value.fset, value.fdel))
            case staticmethod() | classmethod():
                self._add(value.__func__)
            case functools._lru_cache_wrapper():
                self._add(value.__wrapped__)
            case operator.itemgetter() | operator.attrgetter() | operator.methodcaller():
                self._add(value.__reduce__())
            case functools.cached_property():
                self._add(value.func)
            case enum.Enum():
                self._add(type(value))
                self.say(value.name)
            case re.Pattern():
                self.say(value.pattern, value.flags)
            case PurePath():
                self.say(str(value))
            case logging.Logger():
                self.say(value.name)
            case torch._ops.OpOverload() | torch._ops.OpOverloadPacket():
                self.say(str(value))
            case weakref.ref() | types.GeneratorType() | types.CodeType():
                raise self._unknown(f"is a {type(value).__name__}")
            case _:
                self._object(value)

    def _built_in(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        if isinstance(owner, type) or owner is None or isinstance(owner, types.ModuleType):
            module = getattr(value, "__module__", None) or ""
            of = getattr(value, "__objclass__", owner)
            self.say(module, value.__name__, getattr(of, "__name__", ""))
            is_of_torch = module.partition(".")[0] == "torch"
            if module and not is_of_torch and not is_library_module(sys.modules.get(module)):
                raise self._unknown("is compiled code of the user's")
            return
        self.say(value.__name__)
        self._add(owner)

    def _object(self, value: Any) -> None:
        """Of a class in Python all there is stands in its attributes and slots."""
        kind = type(value)
        for base in kind.__mro__:
            if not shows_all(base) and base not in (object, *CONTAINERS, *MAPPINGS, *SCALARS):
                raise self._unknown(f"is a {kind.__name__}, whose state is not seen")
        self._add(kind)
        if isinstance(value, dict):
            self._mapping(dict(value))
        elif isinstance(value, list | tuple | deque):
            self._all(list(value))
        elif isinstance(value, bool | int | float | complex | str | bytes):
            scalar: Any = next(b for b in kind.__mro__ if b in SCALARS)
            self.say(scalar.__repr__(value))
        slots = [s for base in kind.__mro__ for s in slots_of(base)]
        held = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
        held |= getattr(value, "__dict__", {})
        of = (kind.__module__, kind.__qualname__)
        self._mapping({name: v for name, v in held.items() if (*of, name) not in OF_THE_PROCESS})

    # -- code ---------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._code(code)
        for at, cell in enumerate(function.__closure__ or ()):
            try:
                held = cell.cell_contents
            except ValueError:  # not there yet
                continue
            self.add(held, code.co_freevars[at])
        self._add(function.__defaults__)
        self._add(function.__kwdefaults__)
        self._mapping(vars(function))
        if is_library(code.co_filename):
            return
        names, texts = self._names(code)
        self._named |= texts
        for name in sorted(names):
            if name in HIDING and name not in function.__globals__:
                raise self._unknown(f"calls {name}")
            if name in function.__globals__:
                value = function.__globals__[name]
            elif name in vars(builtins):
                value = vars(builtins)[name]
            else:
                raise self._unknown(f"uses {name}, which is not there yet")
            if isinstance(value, types.ModuleType):
                self.say(name)
                self._module(value, texts)
            else:
                self.add(value, name)

    def _code(self, code: types.CodeType) -> None:
        if is_library(code.co_filename):
            self.say(code.co_name, code.co_firstlineno, stamp(code.co_filename))
            return
        for part in parts_of(code):
            self.say(
                *(part.co_filename, part.co_name, part.co_firstlineno, part.co_code),
                *(part.co_linetable, part.co_exceptiontable, part.co_names, part.co_varnames),
                *(part.co_freevars, part.co_cellvars, part.co_flags, part.co_argcount),
                *(part.co_kwonlyargcount, part.co_posonlyargcount),
                [constant(c) for c in part.co_consts],
            )

    def _names(self, code: types.CodeType) -> tuple[set[str], frozenset[str]]:
        """The globals that code reads, and all names and texts in it."""
        names: set[str] = set()
        texts: set[str] = set()
        for part in parts_of(code):
            texts.update(part.co_names, (c for c in part.co_consts if isinstance(c, str)))
            if hidden := OUTSIDE & set(part.co_names):
                raise self._unknown(f"uses {min(hidden)}")
            for step in dis.get_instructions(part):
                match step.opname:
                    case "LOAD_GLOBAL" | "LOAD_NAME":
                        names.add(step.argval)
                    case "STORE_GLOBAL" | "DELETE_GLOBAL":
                        raise self._unknown(f"changes the global {step.argval}")
                    case "IMPORT_NAME":
                        self._imported(step.argval)
        return names, frozenset(texts)

    def _imported(self, name: str) -> None:
        top = sys.modules.get(name.partition(".")[0])
        if top is None or not is_library_module(top):
            raise self._unknown(f"imports {name} when it runs")

    def _module(self, module: types.ModuleType, names: frozenset[str]) -> None:
        """A module of the user's by what code that names it could take from it."""
        self.say("module", module.__name__)
        if (id(module), names) in self._modules:
            return
        self._modules.add((id(module), names))
        is_installed = is_library_module(module)
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if isinstance(value, types.ModuleType):
                self._module(value, names)
            elif not is_installed or is_patch(value):
                self.add(value, f"{module.__name__}.{name}")

    def _class(self, kind: type) -> None:
        self.say(kind.__module__, kind.__qualname__)
        if is_library_module(sys.modules.get(kind.__module__)):
            self._library_class(kind)
            return
        self._all(kind.__bases__)
        if not is_library_module(sys.modules.get(type(kind).__module__)):
            self._add(type(kind))
        follows_all = not issubclass(kind, nn.Module) or any(
            is_library_module(sys.modules.get(base.__module__))
            and base is not object
            and base.__module__.partition(".")[0] != "torch"
            for base in kind.__mro__
        )
        for name in sorted(vars(kind).keys() - IRRELEVANT):
            value = vars(kind)[name]
            is_special = name == "forward" or (name.startswith("__") and name not in UNREACHED)
            if isinstance(value, types.FunctionType) and not (follows_all or is_special):
                self.say(name)
                self._code(value.__code__)
                self._unreached.append((name, value))
            else:
                self.add(value, f"{kind.__name__}.{name}")

    def _library_class(self, kind: type) -> None:
        """By its file; what others put into it, by its content."""
        self.say(stamp(getattr(sys.modules.get(kind.__module__), "__file__", None) or ""))
        for base in kind.__mro__:
            for name, function in functions_of(base):
                code = function.__code__
                self.say(name, code.co_name, code.co_firstlineno)
                if not is_library(code.co_filename):
                    self.add(function, f"{base.__name__}.{name}")
            if not is_library_module(sys.modules.get(base.__module__)):
                self._add(base)
