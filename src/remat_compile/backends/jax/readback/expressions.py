"""Python expressions of generated JAX code as abstract values."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from ....ir.graph import Atom
from ...readback.mismatch import unreadable
from ...readback.names import Variables
from ...readback.python import Expressions
from ...readback.values import Literal, Value, said

__all__ = ["KEY", "Called", "Reader", "function_of"]

KEY = Literal("<the key>")
"""What the variable `key` holds: no Python constant has this `repr`."""

_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool_": "bool",
    "complex64": "c64",
    "complex128": "c128",
}


@dataclass(frozen=True)
class Called:
    """A call of a lowering. `draw` is the number folded into the key, `parts` how many of its
    results are taken, where not all are."""

    function: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    draw: int | None = None
    parts: int | None = None

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(said, self.args))})"


def function_of(op: str) -> str:
    """The name of the lowering of an operator: dots are underscores."""
    return re.sub(r"\W", "_", op)


@dataclass(frozen=True)
class Reader(Expressions):
    """Evaluates expressions; `lowerings` are the functions that the module defines."""

    lowerings: frozenset[str]

    def called(self, node: ast.expr, variables: Variables) -> Called | None:
        """The call of a lowering that an expression is; None where it is none."""
        match node:
            case ast.Subscript(
                value=ast.Call() as inner,
                slice=ast.Slice(lower=None, upper=ast.Constant(value=int(parts)), step=None),
            ):
                made = self.called(inner, variables)
                if made is None:
                    return None
                return Called(made.function, made.args, made.kwargs, made.draw, parts)
            case ast.Call(func=ast.Name(id=name), args=args) if (
                name in self.lowerings and name not in variables
            ):
                draw: int | None = None
                named: dict[str, Value] = {}
                for keyword in node.keywords:
                    if keyword.arg == "key":
                        draw = self._draw(keyword.value, variables)
                    elif keyword.arg is None or keyword.arg in named:
                        unreadable(keyword, self.file, ast.unparse(keyword))
                    else:
                        named[keyword.arg] = self.value(keyword.value, variables)
                values = tuple(self.value(a, variables) for a in args)
                return Called(name, values, named, draw)
            case _:
                return None

    def _draw(self, node: ast.expr, variables: Variables) -> int:
        match node:
            case ast.Call(args=[ast.Name(id=key), ast.Constant(value=int(draw))], keywords=[]) if (
                key in variables and variables[key] == KEY
            ):
                if ast.unparse(node.func) == "jax.random.fold_in":
                    return draw
            case _:
                pass
        return unreadable(node, self.file, ast.unparse(node))

    def framework(self, node: ast.expr) -> Value | None:
        match node:
            case ast.Attribute(value=ast.Name(id="jnp"), attr=name) if name in _DTYPES:
                return Atom("dtype", _DTYPES[name])
            case _:
                return None
