"""Inductor's generated module, as far as a later process runs its kernel without Inductor.

For the CPU that is one function, `call`: it unpacks its arguments, asserts how they lie in memory,
allocates, calls libraries that a compiler made, and returns. Its text is read as a grammar of just
that (`_checked`); anything else, of another release or of a kernel that does more, has no
`Generated`, and is compiled as ever. So what was kept can allocate, and call libraries that were
kept beside it, and nothing else.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "CalledText",
    "Generated",
    "called_text",
    "changed_settings",
    "generated",
    "has_usual_settings",
]

_ENTRY = "kernel"
"""The one function of a library, of which Python's initialisation is named as well."""
_DATA_POINTER = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
"""Where a library looks, as it is loaded, for the function of PyTorch that gives it the data."""
_TEXT = "__text__"
"""Where a function that was loaded has its own."""
_OF_GUARDS = {
    "assert_size_stride": "assert_size_stride",
    "empty_strided_cpu": "_empty_strided_cpu",
    "reinterpret_tensor": "_reinterpret_tensor",
}
_NODES = (
    *(ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Expr, ast.Delete, ast.Return),
    *(ast.Call, ast.Name, ast.Attribute, ast.Tuple, ast.Constant, ast.Load, ast.Store, ast.Del),
)


@dataclass(frozen=True)
class Generated:
    """`call` is the text of the function, `libraries` are the files that it calls, by name."""

    call: str
    libraries: Mapping[str, Path]

    def load(self) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        """The kernel, which takes its arguments in a list, as `compile_traced` gives it.

        ValueError for a text that does more than to allocate and to call; ImportError or OSError
        where a library cannot be loaded.
        """
        tree = _checked(self.call, [*self.libraries])
        guards: Any = torch._C._dynamo.guards
        os.environ[_DATA_POINTER] = str(guards._torchinductor_pyobject_tensor_data_ptr)
        known: dict[str, Any] = {name: getattr(guards, of) for name, of in _OF_GUARDS.items()}
        known |= {name: _library(path) for name, path in self.libraries.items()}
        known["torch"] = SimpleNamespace(**{name: getattr(torch, name) for name in _dtypes()})
        known |= {"__builtins__": {}, _TEXT: self.call}
        exec(compile(tree, "<kernel>", "exec"), known)  # as checked: calls of what `known` has
        return known["call"]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CalledText:
    """A kernel's `call(args)`, which does no more than `_checked` lets it, and what it reads."""

    function: ast.FunctionDef
    libraries: Sequence[str]
    names: Mapping[str, Any]


def called_text(compiled: object) -> CalledText | None:
    """That of what Inductor made of a function, or of what was loaded; None where it does more."""
    call = getattr(compiled, "__func__", compiled)
    own: Mapping[str, Any] = getattr(call, "__globals__", {})
    try:
        text = own[_TEXT] if _TEXT in own else Path(own["__file__"]).read_text(encoding="utf-8")
        tree = ast.parse(text)
        (made,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "call")
        made.args.args = made.args.args[-1:]  # without the object that it is a method of
        functions = [n.func for n in ast.walk(made) if isinstance(n, ast.Call)]
        called = {f.id for f in functions if isinstance(f, ast.Name)}
        libraries = sorted(called - _OF_GUARDS.keys())
        checked = _checked(ast.unparse(made), libraries).body[0]
        assert isinstance(checked, ast.FunctionDef)
        names = {*_OF_GUARDS, *libraries, "torch"} & own.keys()
        return CalledText(checked, libraries, {name: own[name] for name in names})
    except (KeyError, ValueError, OSError, SyntaxError):
        return None


def generated(compiled: object) -> Generated | None:
    """What Inductor made of a function; None where that is more than can be kept."""
    called = called_text(compiled)
    if called is None:
        return None
    try:
        files = {name: _file_of(called.names[name]) for name in called.libraries}
        return Generated(ast.unparse(called.function), files)
    except (KeyError, ValueError):
        return None


def has_usual_settings() -> bool:
    """Whether nobody has changed a setting of Inductor in this process. Those of environment
    variables belong to the key of what is kept."""
    return not changed_settings()


def changed_settings() -> list[tuple[str, str]]:
    """Settings of Inductor that were changed in this process, by name, and what they are now."""
    changed: list[tuple[str, str]] = []
    for name in ("torch._inductor.config", "torch._functorch.config"):
        config = sys.modules.get(name)
        if config is not None:
            changed += [(f"{name}.{key}", value) for key, value in _changed(config)]
    return changed


def _changed(config: Any) -> list[tuple[str, str]]:
    from torch.utils import _config_module

    unset = getattr(_config_module, "_UNSET_SENTINEL", None)
    changed: list[tuple[str, str]] = []
    try:
        for name, entry in config._config.items():
            chosen, usual = entry.user_override.get(), entry.env_value_default
            usual = entry.default if usual is unset else usual
            if chosen is not unset and chosen != usual:  # what was patched for a while is equal
                changed.append((name, repr(chosen)))
    except AttributeError:
        return [("", "another release")]
    return changed


def _checked(text: str, libraries: Sequence[str]) -> ast.Module:
    """The text of one function `call(args)`. ValueError where there is anything in it but
    allocations, assertions, calls of the libraries and names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("a kernel's text is none") from error
    match tree.body:
        case [ast.FunctionDef(name="call", decorator_list=[], returns=None) as made]:
            pass
        case _:
            raise ValueError("a kernel's text is no function `call`")
    taken = made.args
    rest = (*taken.posonlyargs, *taken.kwonlyargs, *taken.defaults, taken.vararg, taken.kwarg)
    if any(rest) or [(a.arg, a.annotation) for a in taken.args] != [("args", None)]:
        raise ValueError("a kernel takes something else than `args`")
    reserved = {*_OF_GUARDS, *libraries, "torch", "call"}
    may_call = {*_OF_GUARDS, *libraries}
    for node in ast.walk(made):
        if not isinstance(node, _NODES):
            raise ValueError(f"a kernel's text has a {type(node).__name__}")
        if isinstance(node, ast.Call) and not _may_call(node, may_call):
            raise ValueError("a kernel calls something else")
        if isinstance(node, ast.Attribute) and not _may_read(node):
            raise ValueError("a kernel reads something else")
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if name in reserved:
                raise ValueError("a kernel sets a name that it calls")
    return tree


def _may_call(node: ast.Call, names: set[str]) -> bool:
    if node.keywords:
        return False
    match node.func:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id="args"), attr="clear"):
            return not node.args
    return False


def _may_read(node: ast.Attribute) -> bool:
    """`args.clear`, which is called alone, and types: what is not loaded is not there."""
    match node:
        case ast.Attribute(value=ast.Name(id="args"), attr="clear", ctx=ast.Load()):
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr=name, ctx=ast.Load()):
            return name in _dtypes()
    return False


def _dtypes() -> list[str]:
    return [name for name, of in vars(torch).items() if isinstance(of, torch.dtype)]


def _file_of(function: object) -> Path:
    """Of a function of an extension module. ValueError for any other."""
    module = getattr(function, "__self__", None)
    path = getattr(module, "__file__", None)
    if getattr(function, "__name__", "") != _ENTRY or not isinstance(module, ModuleType):
        raise ValueError("a kernel calls what is no library")
    if not isinstance(path, str):
        raise ValueError("a library has no file")
    return Path(path)


def _library(path: Path) -> object:
    name = f"{path.stem}.{_ENTRY}"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no library")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return getattr(module, _ENTRY)
