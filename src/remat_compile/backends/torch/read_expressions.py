"""Python expressions of generated PyTorch code as abstract values."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ...ir.graph import Atom
from ..readback.mismatch import unreadable
from ..readback.names import Variables
from ..readback.python import Expressions
from ..readback.values import Items, Value, integer, said

__all__ = ["Called", "Reader", "is_replay_helper"]

_REPLAY = """
def replay(state, op, *args, **kwargs):
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        torch.set_rng_state(now)
"""

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
    "bool": "bool",
    "complex64": "c64",
    "complex128": "c128",
}

# Tensor.permute(1, 0) is aten.permute(x, [1, 0]): these take a list, or its parts one by one.
_TAKE_LISTS = {"permute": "aten.permute.default", "view": "aten.view.default"}
_TAKE_SCALARS = {
    "detach": "aten.detach.default",
    "t": "aten.t.default",
    "transpose": "aten.transpose.int",
    "unsqueeze": "aten.unsqueeze.default",
}


def is_replay_helper(node: ast.FunctionDef, on_cuda: bool) -> bool:
    """Whether a function runs its argument on a given random state and puts back the old."""
    text = _REPLAY.replace("torch.", "torch.cuda.") if on_cuda else _REPLAY
    (wanted,) = ast.parse(text).body
    assert isinstance(wanted, ast.FunctionDef)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    found = ast.FunctionDef("replay", node.args, body, node.decorator_list)
    bare = ast.FunctionDef("replay", wanted.args, wanted.body, [])
    return ast.dump(found) == ast.dump(bare)


@dataclass(frozen=True)
class Called:
    """A call of an operator. `state` is the random state that a replay gives it, `parts` how
    many of its results are taken, where not all are."""

    op: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    state: Value | None = None
    parts: int | None = None

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(said, self.args))})"


@dataclass(frozen=True)
class Reader(Expressions):
    """Evaluates expressions; `operators` are the module's, by variable."""

    operators: Mapping[str, str]
    replays: bool
    on_cuda: bool

    def is_state(self, node: ast.Call) -> bool:
        """Whether a call takes the state of the random stream."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "get_rng_state":
            return False
        place = "torch.cuda" if self.on_cuda else "torch"
        return ast.unparse(node) == f"{place}.get_rng_state()"

    def called(self, node: ast.expr, variables: Variables) -> Called | None:
        """The call of an operator that an expression is; None where it is none."""
        match node:
            case ast.Subscript(
                value=ast.Call() as inner,
                slice=ast.Slice(lower=None, upper=ast.Constant(value=int(parts)), step=None),
            ):
                made = self.called(inner, variables)
                return None if made is None else replace(made, parts=parts)
            case ast.Call(func=ast.Name(id="replay"), args=[state, ast.Name(id=name), *args]):
                if not self.replays or name not in self.operators:
                    unreadable(node, self.file, ast.unparse(node))
                given = self.value(state, variables)
                return replace(
                    self._call(self.operators[name], args, node.keywords, variables), state=given
                )
            case ast.Call(func=ast.Name(id=name), args=args) if name in self.operators:
                return self._call(self.operators[name], args, node.keywords, variables)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name) as own, attr=method), keywords=[]
            ) if name in variables:
                return self._method(node, method, self.value(own, variables), variables)
            case _:
                return None

    def returns_several(self, op: str) -> bool:
        """Whether PyTorch's operator gives a tuple or list and not a tensor."""
        returns = _schema(op).returns
        return len(returns) != 1 or str(returns[0].type).startswith("List")

    def _call(
        self,
        op: str,
        args: list[ast.expr],
        keywords: list[ast.keyword],
        variables: Variables,
    ) -> Called:
        named: dict[str, Value] = {}
        for keyword in keywords:
            if keyword.arg is None or keyword.arg in named:
                unreadable(keyword, self.file, ast.unparse(keyword))
            named[keyword.arg] = self.value(keyword.value, variables)
        return Called(op, tuple(self.value(a, variables) for a in args), named)

    def _method(self, node: ast.Call, method: str, own: Value, variables: Variables) -> Called:
        args = tuple(self.value(a, variables) for a in node.args)
        if method in _TAKE_SCALARS:
            return Called(_TAKE_SCALARS[method], (own, *args), {})
        if method not in _TAKE_LISTS:
            unreadable(node, self.file, ast.unparse(node))
        if len(args) == 1 and isinstance(args[0], Items):
            return Called(_TAKE_LISTS[method], (own, *args), {})
        if any(integer(a) is None for a in args):
            unreadable(node, self.file, ast.unparse(node))
        return Called(_TAKE_LISTS[method], (own, Items(args)), {})

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
            case _:
                return None


def _atom(name: str) -> Atom | None:
    if name in _DTYPES:
        return Atom("dtype", _DTYPES[name])
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
