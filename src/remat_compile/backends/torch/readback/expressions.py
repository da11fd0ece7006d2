"""Python expressions of generated PyTorch code as abstract values."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ....ir.graph import FUSED_OP, Atom
from ...readback.expressions import DTYPES, OperatorCall, Reader
from ...readback.mismatch import unreadable
from ...readback.names import Variables
from ...readback.values import Items, Value, integer

# Tensor.permute(1, 0) is aten.permute(x, [1, 0]): these take a list, or its parts one by one.
_TAKE_LISTS = {"permute": "aten.permute.default", "view": "aten.view.default"}
_TAKE_SCALARS = {
    "detach": "aten.detach.default",
    "t": "aten.t.default",
    "transpose": "aten.transpose.int",
    "unsqueeze": "aten.unsqueeze.default",
}


@dataclass(frozen=True)
class TorchReader(Reader):
    """Evaluates expressions of PyTorch code; `replays` says whether it defines `replay`,
    `generator` has the random states (`torch.cuda`), `regions` are functions of fused cNodes."""

    replays: bool
    generator: str
    regions: frozenset[str] = frozenset()

    def is_state(self, node: ast.Call) -> bool:
        """Return whether a call takes the state of the random stream."""
        return ast.unparse(node) == f"{self.generator}.get_rng_state()"

    def framework_call(self, node: ast.Call, variables: Variables) -> OperatorCall | None:
        match node:
            case ast.Call(func=ast.Name(id="replay"), args=[state, ast.Name(id=name), *args]):
                if not self.replays or name not in self.operators:
                    unreadable(node, self.file, ast.unparse(node))
                made = self.called(self.operators[name], args, node.keywords, variables)
                return replace(made, random=self.value(state, variables))
            case ast.Call(func=ast.Name(id=name), args=args) if name in self.regions:
                return replace(self.called(FUSED_OP, args, node.keywords, variables), region=name)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name) as own, attr=method), keywords=[]
            ) if name in variables:
                return self._method(node, method, self.value(own, variables), variables)
            case _:
                return None

    def returns_several(self, op: str) -> bool:
        """Return whether PyTorch's operator gives a tuple or list and not a tensor."""
        if op == FUSED_OP:
            return True
        returns = _schema(op).returns
        return len(returns) != 1 or str(returns[0].type).startswith("List")

    def _method(
        self, node: ast.Call, method: str, own: Value, variables: Variables
    ) -> OperatorCall:
        args = tuple(self.value(a, variables) for a in node.args)
        if method in _TAKE_SCALARS:
            return OperatorCall(_TAKE_SCALARS[method], (own, *args), {})
        if method not in _TAKE_LISTS:
            unreadable(node, self.file, ast.unparse(node))
        if len(args) == 1 and isinstance(args[0], Items):
            return OperatorCall(_TAKE_LISTS[method], (own, *args), {})
        if any(integer(a) is None for a in args):
            unreadable(node, self.file, ast.unparse(node))
        return OperatorCall(_TAKE_LISTS[method], (own, Items(args)), {})

    def framework(self, node: ast.expr) -> Value | None:
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return _atom(name)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr="device"),
                args=[ast.Constant(value=str(device))],
                keywords=[],
            ):
                return Atom("device", device)
            case ast.Call(
                func=ast.Name(id="complex"), args=[ast.Constant(value=str(number))], keywords=[]
            ):
                return Atom("complex", number)
            case _:
                return None


def _atom(name: str) -> Atom | None:
    if name == "bool" or name in DTYPES:
        return Atom("dtype", DTYPES.get(name, "bool"))
    match getattr(torch, name, None):
        case torch.layout():
            return Atom("layout", name)
        case torch.memory_format():
            return Atom("format", name)
        case _:
            return None


@lru_cache(maxsize=4096)
def _schema(op: str) -> Any:
    """PyTorch's own declaration of an operator's arguments and results."""
    library, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, library), name), overload)._schema
