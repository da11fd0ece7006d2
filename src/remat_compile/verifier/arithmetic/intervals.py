"""Intervals of expressions over ranges of their symbols, and their monotony.

Interval arithmetic: what it says holds, but it may know less than is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, assert_never

from ...ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym

Box = Mapping[str, tuple[int, int]]
"""The least and the greatest value of every symbol."""

Direction = Literal["flat", "rises", "falls", "mixed"]


def names_of(expr: Expr) -> frozenset[str]:
    """The symbols in `expr`."""
    match expr:
        case Const():
            return frozenset()
        case Sym(name):
            return frozenset((name,))
        case Add(parts) | Mul(parts) | Max(parts):
            return frozenset[str]().union(*map(names_of, parts))
        case FloorDiv(inner, _) | CeilDiv(inner, _) | RoundUp(inner, _):
            return names_of(inner)
        case _:
            assert_never(expr)


def bounds(expr: Expr, box: Box) -> tuple[int, int]:
    """Bounds that `expr` keeps everywhere in `box`; divisors are positive."""
    match expr:
        case Const(value):
            return value, value
        case Sym(name):
            return box[name]
        case Add(parts):
            intervals = [bounds(part, box) for part in parts]
            return sum(low for low, _ in intervals), sum(high for _, high in intervals)
        case Max(parts):
            intervals = [bounds(part, box) for part in parts]
            return max(low for low, _ in intervals), max(high for _, high in intervals)
        case Mul(parts):
            low, high = 1, 1
            for part in parts:
                a, b = bounds(part, box)
                products = low * a, low * b, high * a, high * b
                low, high = min(products), max(products)
            return low, high
        case FloorDiv(inner, n):
            low, high = bounds(inner, box)
            return low // n, high // n
        case CeilDiv(inner, n):
            low, high = bounds(inner, box)
            return -(-low // n), -(-high // n)
        case RoundUp(inner, n):
            low, high = bounds(inner, box)
            return -(-low // n) * n, -(-high // n) * n
        case _:
            assert_never(expr)


def direction(expr: Expr, symbol: str, box: Box) -> Direction:
    """The monotonicity of `expr` in `symbol`, the others anywhere in `box`.

    `rises` says that it cannot fall, `falls` that it cannot rise; `mixed` says nothing.
    """
    match expr:
        case Const():
            return "flat"
        case Sym(name):
            return "rises" if name == symbol else "flat"
        case Add(parts) | Max(parts):
            return _join(direction(part, symbol, box) for part in parts)
        case Mul(parts):
            return _join(_weighted(parts, symbol, box))
        case FloorDiv(inner, _) | CeilDiv(inner, _) | RoundUp(inner, _):
            return direction(inner, symbol, box)
        case _:
            assert_never(expr)


def _join(directions: Iterable[Direction]) -> Direction:
    joined = set(directions) - {"flat"}
    match sorted(joined):
        case []:
            return "flat"
        case [one]:
            return one
        case _:
            return "mixed"


def _weighted(parts: tuple[Expr, ...], symbol: str, box: Box) -> Iterator[Direction]:
    """The product's change by that of each factor and the sign of the others."""
    signs = [_sign(bounds(part, box)) for part in parts]
    unknown, negative = signs.count(None), signs.count(-1)
    for part, sign in zip(parts, signs, strict=True):
        way = direction(part, symbol, box)
        if way in ("flat", "mixed"):
            yield way
        elif unknown - (sign is None):
            yield "mixed"
        elif (negative - (sign == -1)) % 2:
            yield "falls" if way == "rises" else "rises"
        else:
            yield way


def _sign(ends: tuple[int, int]) -> int | None:
    """1 where a number is >= 0 in its range, -1 where it is <= 0; None: it changes."""
    low, high = ends
    if low < 0 < high:
        return None
    return -1 if low < 0 else 1


def corner(exprs: Iterable[Expr], box: Box) -> dict[str, int]:
    """The symbols along which no expression falls, or none rises, at the end where all of
    them are greatest whatever the other symbols are."""
    wanted = tuple(exprs)
    ends: dict[str, int] = {}
    for name, (low, high) in box.items():
        ways = _join(direction(expr, name, box) for expr in wanted if name in names_of(expr))
        if low == high or ways in ("flat", "rises"):
            ends[name] = high
        elif ways == "falls":
            ends[name] = low
    return ends


def halves(box: Box) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]] | None:
    """The box in two along its longest side; None for a single point."""
    name = max(box, key=lambda n: box[n][1] - box[n][0], default=None)
    if name is None or box[name][0] == box[name][1]:
        return None
    low, high = box[name]
    middle = (low + high) // 2
    return {**box, name: (low, middle)}, {**box, name: (middle + 1, high)}
