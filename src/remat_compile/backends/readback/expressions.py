"""Expressions of generated Python as abstract values, and the calls of operators among them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .mismatch import unreadable
from .names import Variables
from .values import (
    ANodeInstance,
    Items,
    Literal,
    Poly,
    Value,
    add_sizes,
    as_value,
    dimension,
    floor_division,
    integer,
    largest,
    multiply_sizes,
    shown,
)

DTYPES = {
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
    "complex64": "c64",
    "complex128": "c128",
}
"""Dtypes as PyTorch and JAX both call them, but for `bool`."""


class Unbound(Exception):
    """A variable is read that holds nothing."""


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator or of its lowering. `random` is the state that a replay is run
    with, or the number of a draw; `parts` how many of its results are taken, where not all
    are. `region` is the function of a region that is called."""

    op: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    random: Value | None = None
    parts: int | None = None
    region: str = ""

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(shown, self.args))})"


@dataclass(frozen=True)
class Reader:
    """Evaluates expressions. `operators` are those that the module's names stand for; what
    only PyTorch or JAX has is read by `framework` and `framework_call`."""

    file: str
    operators: Mapping[str, str]

    def framework(self, node: ast.expr) -> Value | None:
        """A dtype, a device and the like; None for anything else."""
        raise NotImplementedError

    def framework_call(self, node: ast.Call, variables: Variables) -> OperatorCall | None:
        """A call of an operator by other means than its name in the module."""
        raise NotImplementedError

    def spelled(self, op: str) -> str:
        """An operator as the code calls it."""
        return op

    def returns_several(self, op: str) -> bool:
        """Return whether an operator, as the code calls it, gives a tuple or list."""
        raise NotImplementedError

    def operator_call(self, node: ast.expr, variables: Variables) -> OperatorCall | None:
        """The call of an operator that an expression is; None where it is none."""
        match node:
            case ast.Subscript(
                value=ast.Call() as inner,
                slice=ast.Slice(lower=None, upper=ast.Constant(value=int(parts)), step=None),
            ):
                made = self.operator_call(inner, variables)
                return None if made is None else replace(made, parts=parts)
            case ast.Call(func=ast.Name(id=name), args=args) if (
                name in self.operators and name not in variables
            ):
                return self.called(self.operators[name], args, node.keywords, variables)
            case ast.Call():
                return self.framework_call(node, variables)
            case _:
                return None

    def called(
        self,
        op: str,
        args: list[ast.expr],
        keywords: list[ast.keyword],
        variables: Variables,
    ) -> OperatorCall:
        """The call of `op` with these arguments. FB0946 where a keyword stands twice."""
        named: dict[str, Value] = {}
        for keyword in keywords:
            if keyword.arg is None or keyword.arg in named:
                unreadable(keyword, self.file, ast.unparse(keyword))
            named[keyword.arg] = self.value(keyword.value, variables)
        return OperatorCall(op, tuple(self.value(a, variables) for a in args), named)

    def value(self, node: ast.expr, variables: Variables) -> Value:
        """The value of an expression. Unbound for a variable that holds nothing, FB0946 for
        an expression that has no meaning here."""
        value = self._plain(node, variables)
        if value is None:
            unreadable(node, self.file, ast.unparse(node))
        return value

    def _plain(self, node: ast.expr, variables: Variables) -> Value | None:
        match node:
            case ast.Name(id=name):
                if name not in variables:
                    raise Unbound(name)
                return variables[name]
            case ast.Constant(value=None | bool() | int() | float() | str() as constant):
                return Literal(repr(constant))
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return Items(tuple(self.value(part, variables) for part in parts))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float(number))):
                return Literal(repr(-number))
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
                slice=ast.Constant(value=int(axis)),
            ) if name in variables:
                of = variables[name]
                if isinstance(of, ANodeInstance) and of.number == 0:
                    return dimension(of.anode, axis)
                return None
            case ast.Call(
                func=ast.Name(id="float"), args=[ast.Constant(value=str(text))], keywords=[]
            ) if "float" not in variables:
                return Literal(repr(float(text)))
            case _:
                value = self.framework(node)
                if value is not None:
                    return value
                size = self._size(node, variables)
                return None if size is None else as_value(size)

    def _size(self, node: ast.expr, variables: Variables) -> Poly | None:
        """An integer expression; None where it is none."""

        def of(*parts: ast.expr) -> list[Poly] | None:
            sizes = [integer(self.value(part, variables)) for part in parts]
            return None if any(f is None for f in sizes) else [f for f in sizes if f is not None]

        minus = integer(Literal("-1"))
        assert minus is not None
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right) if both := of(left, right):
                return add_sizes(both)
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if both := of(left, right):
                return multiply_sizes(both)
            case ast.BinOp(
                left=left, op=ast.FloorDiv(), right=ast.Constant(value=int(divisor))
            ) if (one := of(left)) and divisor > 0:
                return floor_division(one[0], divisor)
            case ast.UnaryOp(op=ast.USub(), operand=operand) if one := of(operand):
                return multiply_sizes((minus, *one))
            case ast.Call(func=ast.Name(id="max"), args=args, keywords=[]) if (
                "max" not in variables and len(args) > 1 and (all_of := of(*args))
            ):
                return largest(all_of)
            case _:
                return None
