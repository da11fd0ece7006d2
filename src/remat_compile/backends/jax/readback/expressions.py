"""Python expressions of generated JAX code as abstract values."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from ....ir.graph import FUSED_OP, Atom, Graph
from ...readback.expressions import DTYPES, OperatorCall, Reader
from ...readback.mismatch import unreadable
from ...readback.names import Variables
from ...readback.values import Literal, Value

KEY = Literal("<the key>")
"""Contents of the variable `key`: no Python constant has this `repr`."""


_REGION = re.compile(r"fused[0-9]+")


def function_of(op: str) -> str:
    """The name of the lowering of an operator: dots are underscores."""
    return re.sub(r"\W", "_", op)


@dataclass(frozen=True)
class JaxReader(Reader):
    """Evaluates expressions of JAX code; `operators` are the lowerings that it defines, `regions`
    the functions of fused cNodes, `several` the lowerings that give a tuple inside those."""

    regions: frozenset[str] = frozenset()
    several: frozenset[str] = frozenset()

    def framework_call(self, node: ast.Call, variables: Variables) -> OperatorCall | None:
        match node:
            case ast.Call(func=ast.Name(id=name), args=args) if name in self.regions:
                return replace(self.called(FUSED_OP, args, node.keywords, variables), region=name)
            case _:
                return None

    def spelled(self, op: str) -> str:
        return function_of(op)

    def returns_several(self, op: str) -> bool:
        """Return whether a call inside a region gives a tuple."""
        return op in self.several

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


def reader_of(functions: dict[str, ast.FunctionDef], graph: Graph, file: str) -> JaxReader:
    """Return a reader of the code of a module with these functions. FB0946 for a region that takes
    other than plain parameters."""
    regions = frozenset(name for name in functions if _REGION.fullmatch(name))
    for name in regions:
        node = functions[name]
        if (
            ", ".join(a.arg for a in node.args.args) != ast.unparse(node.args)
            or node.decorator_list
        ):
            unreadable(node, file, f"{name}({ast.unparse(node.args)})")
    inside = (inner for c in graph.cnodes for inner in c.call.region if inner.index is None)
    several = frozenset(function_of(i.call.op) for i in inside if len(i.writes) > 1)
    lowerings = {name: name for name in functions if name not in regions}
    return JaxReader(file, lowerings, regions, several)
