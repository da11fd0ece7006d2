"""The registry of lowerings: a function by operator, and its source as text of its own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, TypeVar

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)

REGISTERED: dict[str, Lowering] = {}
"""Operator as the IR writes it -> its function; filled as the families are imported."""

IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike
"""
"""All that a lowering may import; it stands at the top of what `source_of` gives."""

_PACKAGE = __name__.rpartition(".")[0]


def function_name(op: str) -> str:
    """`aten.t.default` -> `aten_t_default`."""
    return op.replace(".", "_")


def lowers(*ops: str) -> Callable[[F], F]:
    """Registers a function for operators of one signature and one meaning.

    It is named after the first of them, with dots as underscores. The decorator does not
    appear in what `source_of` gives.
    """

    def register(function: F) -> F:
        assert function.__name__ == function_name(ops[0]), f"{function.__name__} for {ops[0]}"
        for op in ops:
            assert op not in REGISTERED, f"{op} is lowered twice"
            REGISTERED[op] = function
        return function

    return register


def lowers_each(table: Mapping[str, Lowering]) -> None:
    """Registers lambdas, each under its operators with spaces between them:

        lowers_each({"aten.eq.Tensor aten.eq.Scalar": lambda x, other: x == other})

    The table is written in the call, for `source_of` to find. It gives each lambda as a function
    with a name of its own, as `lowers` wants one to be named.
    """
    for ops, function in table.items():
        function.__name__ = function_name(ops.split()[0])
        lowers(*ops.split())(function)


def gather(functions: Mapping[str, Lowering]) -> str:
    """The definitions of `functions`, under the names given, and of all functions of this
    package that they call.

    A function stands after those that it calls; none stands twice.
    """
    texts: dict[str, str] = {}
    for name, function in functions.items():
        _add(name, function, texts)
    return "\n\n".join(texts.values())


def _add(own_name: str, function: Lowering, texts: dict[str, str]) -> None:
    assert isinstance(function, FunctionType)
    if own_name in texts:
        return
    module = inspect.getmodule(function)
    assert module is not None
    text, names = _definitions(module)[function.__name__]
    for name in names:
        callee = function.__globals__.get(name)
        if callee is not function and isinstance(callee, FunctionType) and _is_ours(callee):
            _add(name, callee, texts)
    texts[own_name] = text.replace(function.__name__, own_name, 1)


def _is_ours(function: FunctionType) -> bool:
    return function.__module__.startswith(f"{_PACKAGE}.")


@lru_cache(maxsize=64)
def _definitions(module: ModuleType) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The functions of a module by their names: the text of each without its decorators, and the
    names that it reads."""
    source = inspect.getsource(module)
    lines = source.splitlines(keepends=True)
    definitions = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name, body=body):
                text = "".join(lines[node.lineno - 1 : node.end_lineno])
                definitions[name] = (text, _reads(*body))
            case ast.Expr(ast.Call(ast.Name("lowers_each"), [ast.Dict(keys, values)])):
                for key, value in zip(keys, values, strict=True):
                    assert isinstance(key, ast.Constant)
                    assert isinstance(value, ast.Lambda)
                    name = function_name(str(key.value).split()[0])
                    head = f"def {name}({ast.unparse(value.args)}):\n"
                    text = f"{head}    return {ast.unparse(value.body)}\n"
                    definitions[name] = (text, _reads(value.args, value.body))
    return definitions


def _reads(*nodes: ast.AST) -> tuple[str, ...]:
    names = (n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name))
    return tuple(dict.fromkeys(names))
