"""Python expressions that compute nothing on tensors, as abstract values."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .mismatch import unreadable
from .names import Variables
from .values import (
    Instance,
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
)

__all__ = ["Expressions", "Unbound"]


class Unbound(Exception):
    """A variable is read that holds nothing."""


@dataclass(frozen=True)
class Expressions:
    """Evaluates expressions; `framework` is for what only PyTorch or JAX has."""

    file: str

    def framework(self, node: ast.expr) -> Value | None:
        """A dtype, a device and the like; None for anything else."""
        raise NotImplementedError

    def value(self, node: ast.expr, variables: Variables) -> Value:
        """The value of an expression. Unbound for a variable that holds nothing, FB0946 for
        an expression that has no meaning here."""
        found = self._plain(node, variables)
        if found is None:
            unreadable(node, self.file, ast.unparse(node))
        return found

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
                if isinstance(of, Instance) and of.number == 0:
                    return dimension(of.anode, axis)
                return None
            case ast.Call(
                func=ast.Name(id="float"), args=[ast.Constant(value=str(text))], keywords=[]
            ) if "float" not in variables:
                return Literal(repr(float(text)))
            case _:
                found = self.framework(node)
                if found is not None:
                    return found
                size = self._size(node, variables)
                return None if size is None else as_value(size)

    def _size(self, node: ast.expr, variables: Variables) -> Poly | None:
        """An integer expression; None where it is none."""

        def of(*parts: ast.expr) -> list[Poly] | None:
            found = [integer(self.value(part, variables)) for part in parts]
            return None if any(f is None for f in found) else [f for f in found if f is not None]

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
