"""Python expressions of generated JAX code as abstract values."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from ....ir.graph import Atom
from ...readback.expressions import DTYPES, OperatorCall, Reader
from ...readback.mismatch import unreadable
from ...readback.names import Variables
from ...readback.values import Literal, Value

KEY = Literal("<the key>")
"""What the variable `key` holds: no Python constant has this `repr`."""


def function_of(op: str) -> str:
    """The name of the lowering of an operator: dots are underscores."""
    return re.sub(r"\W", "_", op)


class JaxReader(Reader):
    """Evaluates expressions of JAX code; `operators` are the lowerings that it defines."""

    def framework_call(self, node: ast.Call, variables: Variables) -> None:
        return None

    def called(
        self,
        op: str,
        args: list[ast.expr],
        keywords: list[ast.keyword],
        variables: Variables,
    ) -> OperatorCall:
        keys = [k.value for k in keywords if k.arg == "key"]
        if not keys:
            return super().called(op, args, keywords, variables)
        made = super().called(op, args, [k for k in keywords if k.arg != "key"], variables)
        if len(keys) > 1:
            unreadable(keys[1], self.file, f"{op} is given two keys")
        return replace(made, random=self._draw(keys[0], variables))

    def _draw(self, node: ast.expr, variables: Variables) -> Value:
        match node:
            case ast.Call(args=[ast.Name(id=key), ast.Constant(value=int(draw))], keywords=[]) if (
                key in variables and variables[key] == KEY
            ):
                if ast.unparse(node.func) == "jax.random.fold_in":
                    return Literal(repr(draw))
            case _:
                pass
        return unreadable(node, self.file, ast.unparse(node))

    def framework(self, node: ast.expr) -> Value | None:
        match node:
            case ast.Attribute(value=ast.Name(id="jnp"), attr=name) if (
                name == "bool_" or name in DTYPES
            ):
                return Atom("dtype", DTYPES.get(name, "bool"))
            case _:
                return None
