"""Rules of `fbir.lark` inside a statement: expressions, operators and their arguments."""

from __future__ import annotations

import math
from typing import Any, cast

from ..expr import (
    Add,
    CeilDiv,
    Const,
    Expr,
    FloorDiv,
    Max,
    Mul,
    RoundUp,
    Sym,
    evaluate,
    symbols_of,
    too_large,
)
from ..graph import Arg, Atom, Call, Ref
from .tokens import double, integer, once, refuse, string

__all__ = ["CallRules", "ExpressionRules"]


def _negated(expr: Expr) -> Expr:
    match expr:
        case Const(value):
            return Const(-value)
        case Mul((Const(value), *rest)):
            return Mul((Const(-value), *rest))
        case _:
            return Mul((Const(-1), expr))


class ExpressionRules:
    """Rules of integer expressions. Nothing is simplified: what is written is what is built."""

    def integer(self, c: list[Any]) -> Const:
        return Const(integer(c[0]))

    def symbol(self, c: list[Any]) -> Sym:
        return Sym(str(c[0]))

    def sum(self, c: list[Any]) -> Add:
        terms = [c[0]]
        for sign, term in zip(c[1::2], c[2::2], strict=True):
            terms.append(term if sign == "+" else _negated(term))
        return Add(tuple(terms))

    def product(self, c: list[Any]) -> Mul:
        return Mul(tuple(c))

    def division(self, c: list[Any]) -> Expr:
        by = integer(c[2])
        if by <= 0:
            refuse("FB0108", f"{c[0]}…) needs a divisor of at least 1, not {by}", c[2])
        match str(c[0]):
            case "floordiv(":
                return FloorDiv(c[1], by)
            case "ceildiv(":
                return CeilDiv(c[1], by)
            case _:
                return RoundUp(c[1], by)

    def maximum(self, c: list[Any]) -> Max:
        return Max(tuple(c[1:]))


class CallRules:
    """Rules of operators and their arguments."""

    def argument(self, c: list[Any]) -> Arg:
        part = c[0]
        if not hasattr(part, "type"):
            if isinstance(part, tuple) or symbols_of(part) or too_large(part, {}):
                return cast(Arg, part)  # well-formedness refuses what is too large, with its place
            return evaluate(part, {})
        match part.type:
            case "REF":
                return Ref(str(part[1:]))
            case "STRING":
                return string(part)
            case "FLOAT":
                return double(part)
            case "ATOM":
                kind, _, value = part.partition(":")
                return Atom(cast(Any, kind), value)
            case _:
                return _CONSTANTS[part]

    def sequence(self, c: list[Any]) -> tuple[Arg, ...]:
        return tuple(c)

    def keyword(self, c: list[Any]) -> _Keyword:
        return _Keyword(c[0], c[1])

    def arguments(self, c: list[Any]) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        if not any(type(part) is _Keyword for part in c):
            return tuple(c), ()
        start = next(i for i, part in enumerate(c) if type(part) is _Keyword)
        named: list[tuple[str, Any, Any]] = []
        for part in c[start:]:
            if type(part) is not _Keyword:
                refuse("FB0107", "an argument without a name stands after this one", c[start].token)
            named.append((part.token.rstrip("= \t"), part.token, part.value))
        return tuple(c[:start]), tuple(once(named, "in this call").items())

    def call(self, c: list[Any]) -> Call:
        if len(c) == 1:
            return Call(str(c[0][:-1]))
        return Call(str(c[0][:-1]), *c[1])


class _Keyword:
    """`name=value` inside a call."""

    __slots__ = ("token", "value")

    def __init__(self, token: Any, value: Arg):
        self.token = token
        self.value = value


_CONSTANTS: dict[str, Arg] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
}
