"""Bytes of everything that a schedule takes memory for, as the statements give them.

The verifier evaluates sizes itself: a slip in the evaluator that planners use must
not reach the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import assert_never

from ..ir.diagnostics import Diagnostic
from ..ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ..ir.program import Program
from ..ir.span import Span
from .ranges import names_of
from .statements import Statements

__all__ = ["Amounts", "Sizes", "measure", "read_amounts", "value"]


@dataclass(frozen=True)
class Sizes:
    """Bytes, rounded up to the target's granularity, at one assignment of the symbols.

    `workspace` holds, per cNode, that of the first execution and that of every later one.
    `existing` is what the caller's gradients take before the step (`grads accumulate`).
    """

    anode: Mapping[str, int]
    workspace: Mapping[str, tuple[int, int]]
    existing: int


@dataclass(frozen=True)
class Amounts:
    """The same as expressions of the symbols: numbers of `forms`, equal sizes sharing one.

    `declared` are the expressions before rounding, each with the nodes that have it.
    """

    forms: tuple[Expr, ...]
    anode: Mapping[str, int]
    workspace: Mapping[str, tuple[int, int]]
    existing: tuple[int, ...]
    declared: Mapping[Expr, tuple[Place, ...]]

    def at(self, env: Mapping[str, int]) -> Sizes:
        """The bytes at `env`, which binds every symbol."""
        number = [value(form, env) for form in self.forms]
        return Sizes(
            {name: number[form] for name, form in self.anode.items()},
            {name: (number[a], number[b]) for name, (a, b) in self.workspace.items()},
            sum(number[form] for form in self.existing),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """What an expression is the size of, in words, and where that stands."""

    what: str
    span: Span | None


def value(expr: Expr, env: Mapping[str, int]) -> int:
    """The value of `expr`; KeyError for an unbound symbol, ZeroDivisionError as it says."""
    match expr:
        case Const(constant):
            return constant
        case Sym(name):
            return env[name]
        case Add(parts):
            return sum(value(part, env) for part in parts)
        case Mul(parts):
            return prod(value(part, env) for part in parts)
        case Max(parts):
            return max(value(part, env) for part in parts)
        case FloorDiv(inner, n):
            return value(inner, env) // n
        case CeilDiv(inner, n):
            return _ceil(value(inner, env), n)
        case RoundUp(inner, n):
            return _ceil(value(inner, env), n) * n
        case _:
            assert_never(expr)


def _ceil(a: int, n: int) -> int:
    return -(-a // n)


class _Reader:
    """Collects the expressions, rounded up, and what is wrong with them."""

    def __init__(self, program: Program):
        self.unit = program.target.granularity_bytes
        self.known = {s.name for s in program.symbols}
        self.found: list[Diagnostic] = []
        self.number: dict[Expr, int] = {}
        self.declared: dict[Expr, list[Place]] = {}

    def refuse(self, message: str, span: Span | None = None) -> None:
        self.found.append(Diagnostic("FB0802", message, span))

    def read(self, expr: Expr, what: str, span: Span | None) -> int:
        """The number of the rounded form of `expr`."""
        if expr not in self.declared:
            self.declared[expr] = []
        self.declared[expr].append(Place(what, span))
        for name in sorted(names_of(expr) - self.known):
            self.refuse(f"{what} depends on the symbol {name}, which is not declared", span)
        if any(n < 1 for n in _divisors(expr)):
            self.refuse(f"{what} divides by zero, or by less", span)
            return 0
        form: Expr = expr if self.unit == 1 else RoundUp(expr, self.unit)
        return self.number.setdefault(form, len(self.number))


def _divisors(expr: Expr) -> Iterator[int]:
    match expr:
        case Const() | Sym():
            return
        case Add(parts) | Mul(parts) | Max(parts):
            for part in parts:
                yield from _divisors(part)
        case FloorDiv(inner, n) | CeilDiv(inner, n) | RoundUp(inner, n):
            yield n
            yield from _divisors(inner)
        case _:
            assert_never(expr)


def read_amounts(program: Program, statements: Statements) -> Amounts | tuple[Diagnostic, ...]:
    """The sizes as expressions, or why there are none (FB0802)."""
    unit = program.target.granularity_bytes
    if unit < 1:
        return (Diagnostic("FB0802", f"the target's granularity is {unit} bytes, not positive"),)
    reader, graph = _Reader(program), program.graph
    anode = {a.name: reader.read(a.size, f"the size of %{a.name}", a.span) for a in graph.anodes}
    workspace = {}
    for c in graph.cnodes:
        first = again = reader.read(c.workspace, f"the workspace of {c.name}", c.span)
        if c.replay is not None:
            what = f"the workspace of {c.name}'s replay form"
            again = reader.read(c.replay.workspace, what, c.span)
        workspace[c.name] = first, again
    existing: tuple[int, ...] = ()
    if program.binding.grads == "accumulate":
        params = (p for p in program.binding.params if p.grad is not None)
        existing = tuple(anode[statements.alias[p.name]] for p in params)
    if reader.found:
        return tuple(reader.found)
    declared = {expr: tuple(places) for expr, places in reader.declared.items()}
    return Amounts(tuple(reader.number), anode, workspace, existing, declared)


def measure(
    statements: Statements, amounts: Amounts, env: Mapping[str, int]
) -> Sizes | tuple[Diagnostic, ...]:
    """The sizes at `env`, or what is wrong with them there (FB0802)."""
    found: list[Diagnostic] = []
    for expr, places in amounts.declared.items():
        if (size := value(expr, env)) < 0:
            for place in places:
                message = f"{place.what} is {size} bytes, less than none"
                found.append(Diagnostic("FB0802", message, place.span))
    sizes = amounts.at(env)
    for name, (ended, named) in statements.accumulates.items():
        a, b = sizes.anode[ended], sizes.anode[named]
        if a != b:
            message = (
                f"{name} names the storage of %{ended} ({a} bytes) %{named}, which "
                f"is declared with {b} bytes"
            )
            found.append(Diagnostic("FB0802", message, statements.cnodes[name].span))
    return tuple(found) or sizes
