"""The text of lowerings, gathered so that it stands alone."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike
"""
"""All that a lowering may import; it stands at the top of what `source_of` gives."""

_PACKAGE = __name__.rpartition(".")[0]


def gather(functions: Mapping[str, Callable[..., Any]]) -> str:
    """The definitions of `functions`, under the names given, and of all functions of this
    package that they call.

    A function stands after those that it calls; none stands twice.
    """
    texts: dict[str, str] = {}
    for name, function in functions.items():
        _add(name, function, texts)
    return "\n\n".join(texts.values())


def _add(own_name: str, function: Callable[..., Any], texts: dict[str, str]) -> None:
    assert isinstance(function, FunctionType)
    if own_name in texts:
        return
    text, names = _definition(inspect.getmodule(function), function.__name__)
    for name in names:
        callee = function.__globals__.get(name)
        if callee is not function and isinstance(callee, FunctionType) and _is_ours(callee):
            _add(name, callee, texts)
    texts[own_name] = text.replace(function.__name__, own_name, 1)


def _is_ours(function: FunctionType) -> bool:
    return function.__module__.startswith(f"{_PACKAGE}.")


def _definition(module: ModuleType | None, name: str) -> tuple[str, tuple[str, ...]]:
    """The text of a function without its decorators, and the names that it reads."""
    assert module is not None
    lines, nodes = _parsed(module)
    node = nodes[name]
    reads = (n.id for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name))
    text = "".join(lines[node.lineno - 1 : node.end_lineno])
    return text, tuple(dict.fromkeys(reads))


@lru_cache(maxsize=64)
def _parsed(module: ModuleType) -> tuple[list[str], dict[str, ast.FunctionDef]]:
    source = inspect.getsource(module)
    nodes = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    return source.splitlines(keepends=True), nodes
