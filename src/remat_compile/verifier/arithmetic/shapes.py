"""The bytes that a tensor of an aNode's shape and type takes: its storage has no fewer.

Storage may be larger than the tensor that its writer returns (a kernel pads). It is smaller
only where elements share bytes (`expand`), which no operator gives to new storage: that is
left to what the caller brings in himself (`MAY_OVERLAP`), and told among the assumptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from math import prod

from ...ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ...ir.graph import DTYPE_BYTES, ANode
from .intervals import Box, bounds

MAY_OVERLAP = frozenset(("input", "buffer", "const"))
"""Kinds of storage that may hold fewer bytes than the shape: the caller may have expanded it."""

MOST_TERMS = 100
MOST_FACTORS = 20
"""A longer polynomial, or one of longer products, is not multiplied out."""

_Polynomial = dict[tuple[Expr, ...], int]
"""Coefficients by product: `2*b*b + 3` is {(b, b): 2, (): 3}. Factors are symbols, or
divisions, roundings and maxima as they stand."""


def least_bytes(anode: ANode) -> Expr | None:
    """The bytes of all elements, each by itself; None for an unknown type."""
    item = DTYPE_BYTES.get(anode.dtype)
    if item is None:
        return None
    if all(isinstance(extent, Const) for extent in anode.shape):
        extents = (extent.value for extent in anode.shape if isinstance(extent, Const))
        return Const(item * prod(extents))
    return Mul((Const(item), *anode.shape))


def is_at_least(size: Expr, least: Expr, box: Box) -> bool:
    """True if `size >= least` everywhere in `box`; True is a proof, False says nothing.

    By interval arithmetic; else by multiplying out, as in `4*(b*8) = 32*b`: the difference
    then has no negative coefficient on products that are nowhere negative.
    """
    if bounds(size, box)[0] >= bounds(least, box)[1]:
        return True
    match size:
        case Max(parts) if any(is_at_least(part, least, box) for part in parts):
            return True
        case RoundUp(inner, _) if is_at_least(inner, least, box):
            return True
        case _:
            pass
    ours, needed = _multiplied_out(size), _multiplied_out(least)
    if ours is None or needed is None:
        return False
    difference = Counter(ours)
    difference.subtract(needed)
    return all(
        coefficient == 0 or (coefficient > 0 and all(bounds(f, box)[0] >= 0 for f in factors))
        for factors, coefficient in difference.items()
    )


def _multiplied_out(expr: Expr) -> _Polynomial | None:
    match expr:
        case Const(value):
            return {(): value}
        case Sym() | FloorDiv() | CeilDiv() | RoundUp() | Max():
            return {(expr,): 1}
        case Add(parts):
            polynomial: _Polynomial = {}
            for part in parts:
                if (terms := _multiplied_out(part)) is None:
                    return None
                _add(polynomial, terms.items())
            return polynomial
        case Mul(parts):
            polynomial = {(): 1}
            for part in parts:
                terms = _multiplied_out(part)
                if terms is None or len(terms) * len(polynomial) > MOST_TERMS:
                    return None
                if max(map(len, polynomial)) > MOST_FACTORS:
                    return None
                pairs = product(polynomial.items(), terms.items())
                polynomial = {}
                _add(polynomial, ((_ordered(a, b), m * n) for (a, m), (b, n) in pairs))
            return polynomial


def _ordered(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(sorted((*a, *b), key=repr))


def _add(polynomial: _Polynomial, terms: Iterable[tuple[tuple[Expr, ...], int]]) -> None:
    for factors, coefficient in terms:
        polynomial[factors] = polynomial.get(factors, 0) + coefficient
