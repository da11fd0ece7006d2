"""Sizes as terms for z3: per distinct size one constant, per division one quotient.

Where no symbol is free the functions of `machine.smt2` say the same, and the solver computes them.
Each constant is fixed by the symbols alone: `n q >= e > n q - n` has exactly one integer
`q`, and a maximum is one of its parts and not below any. (With `div`, z3 does not finish.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import assert_never

from ...ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ..smt import Encoding, numeral
from .intervals import Box, names_of


def total(terms: Iterable[str]) -> str:
    """The sum of some terms, as a term."""
    parts = list(terms)
    match parts:
        case []:
            return "0"
        case [one]:
            return one
        case _:
            return f"(+ {' '.join(parts)})"


def ground(expr: Expr, env: Mapping[str, int]) -> str:
    """`expr` as it stands, with numerals for the symbols: a term that the solver evaluates."""
    match expr:
        case Const(constant):
            return numeral(constant)
        case Sym(name):
            return numeral(env[name])
        case Add(parts):
            return total(ground(part, env) for part in parts)
        case Mul(parts):
            return f"(* {' '.join(ground(part, env) for part in parts)})"
        case Max(parts):
            return reduce(lambda x, y: f"(later {x} {y})", (ground(part, env) for part in parts))
        case FloorDiv(inner, n):
            return f"(floordiv {ground(inner, env)} {n})"
        case CeilDiv(inner, n):
            return f"(ceildiv {ground(inner, env)} {n})"
        case RoundUp(inner, n):
            return f"(roundup {ground(inner, env)} {n})"
        case _:
            assert_never(expr)


def symbol_constant(name: str) -> str:
    """The constant of a symbol; `!` stands in no other constant, nor in a symbol's name."""
    return f"sym!{name}"


class Terms:
    """Writes expressions into an encoding: symbols of `free` range, the others are `fixed`."""

    def __init__(self, encoding: Encoding, fixed: Mapping[str, int], free: Box):
        self.encoding = encoding
        self.fixed = fixed
        self.free = free
        self._names: dict[Expr, str] = {}
        self._known: dict[Expr, str] = {}
        self._part = -1

    def of(self, expr: Expr) -> str:
        """The term of `expr`: without symbols, or over constants that this part defines."""
        if self._part != self.encoding.part:
            self._begin()
        if expr not in self._known:
            if self.free.keys().isdisjoint(names_of(expr)):
                self._known[expr] = ground(expr, self.fixed)
            else:
                self._known[expr] = self._define(expr)
        return self._known[expr]

    def _begin(self) -> None:
        self._part = self.encoding.part
        self._known.clear()
        for name, (low, high) in self.free.items():
            constant = self._known[Sym(name)] = symbol_constant(name)
            self.encoding.state(
                f"(declare-const {constant} Int)"
                f"(assert (<= {numeral(low)} {constant} {numeral(high)}))"
            )

    def _define(self, expr: Expr) -> str:
        match expr:
            case Const() | Sym():
                raise AssertionError("a constant has a numeral, a free symbol its constant")
            case Add(parts):
                return total(map(self.of, parts))
            case Mul(parts):
                return f"(* {' '.join(map(self.of, parts))})"
            case Max(parts):
                greatest, terms = self._constant(expr, "m"), [self.of(part) for part in parts]
                for term in terms:
                    self.encoding.state(f"(assert (>= {greatest} {term}))")
                some = " ".join(f"(= {greatest} {term})" for term in terms)
                self.encoding.state(f"(assert (or false {some}))")
                return greatest
            case FloorDiv(inner, n):
                quotient, term = self._constant(expr, "q"), self.of(inner)
                self.encoding.state(f"(assert (<= 0 (- {term} (* {n} {quotient})) {n - 1}))")
                return quotient
            case CeilDiv(inner, n):
                quotient, term = self._constant(expr, "q"), self.of(inner)
                self.encoding.state(f"(assert (<= 0 (- (* {n} {quotient}) {term}) {n - 1}))")
                return quotient
            case RoundUp(inner, n):
                if is_multiple(inner, n):
                    return self.of(inner)
                return f"(* {n} {self.of(CeilDiv(inner, n))})"
            case _:
                assert_never(expr)

    def _constant(self, expr: Expr, stem: str) -> str:
        name = self._names.setdefault(expr, f"{stem}{len(self._names)}")
        self.encoding.state(f"(declare-const {name} Int)")
        return name


def is_multiple(expr: Expr, n: int) -> bool:
    """True if `expr` is a multiple of `n` for every value of the symbols; True is a proof."""
    match expr:
        case Const(constant):
            return constant % n == 0
        case Add(parts) | Max(parts):
            return all(is_multiple(part, n) for part in parts)
        case Mul(parts):
            return any(is_multiple(part, n) for part in parts)
        case RoundUp(_, multiple):
            return multiple % n == 0
        case Sym() | FloorDiv() | CeilDiv():
            return n == 1
        case _:
            assert_never(expr)
