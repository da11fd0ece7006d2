"""Integer expressions of the symbols (dynamic dimensions).

Sizes in bytes, shapes and the integer arguments of operators are expressions:
sums, products, floor and ceiling division by a positive constant, maximum, and
rounding up to a multiple. They hold no other names than symbols, so one
assignment of the symbols fixes every size of a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Const:
    value: int


@dataclass(frozen=True, slots=True)
class Sym:
    name: str


@dataclass(frozen=True, slots=True)
class Add:
    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Mul:
    factors: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """`a // n`, with a constant n > 0."""

    dividend: Expr
    divisor: int


@dataclass(frozen=True, slots=True)
class CeilDiv:
    """`ceildiv(a, n)`, with a constant n > 0."""

    dividend: Expr
    divisor: int


@dataclass(frozen=True, slots=True)
class Max:
    terms: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class RoundUp:
    """`roundup(a, n)`: the least multiple of the constant n > 0 that is >= a."""

    value: Expr
    multiple: int


Expr = Const | Sym | Add | Mul | FloorDiv | CeilDiv | Max | RoundUp


def add(*terms: Expr) -> Expr:
    """The sum, flattened, constants folded and standing last."""
    parts = [part for term in terms for part in (term.terms if isinstance(term, Add) else (term,))]
    flat: list[Expr] = [part for part in parts if not isinstance(part, Const)]
    constant = sum([part.value for part in parts if isinstance(part, Const)])
    if constant or not flat:
        flat.append(Const(constant))
    return flat[0] if len(flat) == 1 else Add(tuple(flat))


def mul(*factors: Expr) -> Expr:
    """The product, flattened, constants folded and standing first."""
    parts = [part for f in factors for part in (f.factors if isinstance(f, Mul) else (f,))]
    flat: list[Expr] = [part for part in parts if not isinstance(part, Const)]
    constant = prod([part.value for part in parts if isinstance(part, Const)])
    if constant == 0:
        return Const(0)
    if constant != 1 or not flat:
        flat.insert(0, Const(constant))
    return flat[0] if len(flat) == 1 else Mul(tuple(flat))


def floor_div(dividend: Expr, divisor: int) -> Expr:
    if isinstance(dividend, Const):
        return Const(dividend.value // divisor)
    return dividend if divisor == 1 else FloorDiv(dividend, divisor)


def max_of(*terms: Expr) -> Expr:
    """The maximum, duplicates dropped and constants folded."""
    flat = list(dict.fromkeys(terms))
    constants = [term.value for term in flat if isinstance(term, Const)]
    rest: list[Expr] = [term for term in flat if not isinstance(term, Const)]
    if constants:
        rest.insert(0, Const(max(constants)))
    return rest[0] if len(rest) == 1 else Max(tuple(rest))


def evaluate(expr: Expr, env: Mapping[str, int]) -> int:
    """The value under an assignment of the symbols. KeyError for an unbound one."""
    match expr:
        case Const(value):
            return value
        case Sym(name):
            return env[name]
        case Add(terms):
            return sum(evaluate(term, env) for term in terms)
        case Mul(factors):
            product = 1
            for factor in factors:
                product *= evaluate(factor, env)
            return product
        case FloorDiv(dividend, divisor):
            return evaluate(dividend, env) // divisor
        case CeilDiv(dividend, divisor):
            return -(-evaluate(dividend, env) // divisor)
        case Max(terms):
            return max(evaluate(term, env) for term in terms)
        case RoundUp(value, multiple):
            return -(-evaluate(value, env) // multiple) * multiple
        case _:
            assert_never(expr)


def symbols_of(expr: Expr) -> frozenset[str]:
    match expr:
        case Const():
            return frozenset()
        case Sym(name):
            return frozenset((name,))
        case Add(parts) | Mul(parts) | Max(parts):
            return frozenset().union(*(symbols_of(part) for part in parts))
        case FloorDiv(inner, _) | CeilDiv(inner, _) | RoundUp(inner, _):
            return symbols_of(inner)
        case _:
            assert_never(expr)


LARGEST = 10**100
"""Limit on every part of an expression within the ranges: far beyond bytes, far below 1e308."""


def too_large(expr: Expr, largest: Mapping[str, int]) -> bool:
    """True if a part of it might exceed 10^100 with symbols up to `largest`.

    Judged by absolute values: `b - b` counts as 2·b. Linear, since no number outgrows the limit.
    """
    return _magnitude(expr, largest) > LARGEST


def _magnitude(expr: Expr, largest: Mapping[str, int]) -> int:
    """A bound on the absolute value of every part, or LARGEST + 1."""
    beyond = LARGEST + 1
    match expr:
        case Const(value):
            return min(abs(value), beyond)
        case Sym(name):
            return min(abs(largest.get(name, 1)), beyond)
        case Add(parts):
            return min(sum(_magnitude(part, largest) for part in parts), beyond)
        case Max(parts):
            return max((_magnitude(part, largest) for part in parts), default=0)
        case Mul(parts):
            product = 1
            for part in parts:
                # A factor of 0 does not make small what stands before or after it.
                product = min(product * max(1, _magnitude(part, largest)), beyond)
            return product
        case FloorDiv(inner, by) | CeilDiv(inner, by) | RoundUp(inner, by):
            return min(_magnitude(inner, largest) + by, beyond)
        case _:
            assert_never(expr)


def format_expr(expr: Expr) -> str:
    """The text form; parsing it gives back an equal expression, structure included.

    Sums, products and maxima of fewer than two parts have no text form of their own.
    """
    match expr:
        case Const(value):
            return str(value)
        case Sym(name):
            return name
        case Add(terms):
            return "".join(_format_term(term, first=i == 0) for i, term in enumerate(terms))
        case Mul(factors):
            return "*".join(_format_factor(f, first=i == 0) for i, f in enumerate(factors))
        case FloorDiv(inner, by):
            return f"floordiv({format_expr(inner)}, {by})"
        case CeilDiv(inner, by):
            return f"ceildiv({format_expr(inner)}, {by})"
        case Max(terms):
            return "max(" + ", ".join(format_expr(term) for term in terms) + ")"
        case RoundUp(inner, by):
            return f"roundup({format_expr(inner)}, {by})"
        case _:
            assert_never(expr)


def _format_term(term: Expr, *, first: bool) -> str:
    """A summand with the sign that joins it to those before it."""
    text = f"({format_expr(term)})" if isinstance(term, Add) else format_expr(term)
    if first:
        return text
    match term:
        case Const(value) if value < 0:
            return f" - {-value}"
        case Mul((Const(value), *_)) if value < -1:
            return f" - {text[1:]}"
        case _:
            return f" + {text}"


def _format_factor(factor: Expr, *, first: bool) -> str:
    text = format_expr(factor)
    negative = isinstance(factor, Const) and factor.value < 0
    if isinstance(factor, Add | Mul) or (negative and not first):
        return f"({text})"
    return text
