"""Bytes of everything that a schedule takes memory for, as the statements give them.

The verifier evaluates sizes itself: a slip in the evaluator that planners use must
not reach the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, assert_never

from ...ir.diagnostics import Diagnostic
from ...ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ...ir.graph import ANode, CNode
from ...ir.program import Program
from ...ir.span import Span
from ..arithmetic.intervals import bounds, names_of
from ..arithmetic.shapes import MAY_OVERLAP, least_bytes
from .statements import Statements

MOST = 2**63 - 1
"""Bytes at the sample, nanoseconds and ends of ranges; more is a slip of the pen."""

MOST_BITS = 4000
"""Limit on a size anywhere in the ranges, so that sums of them can still be written down."""


@dataclass(frozen=True)
class Sizes:
    """Bytes, rounded up to the target's granularity, at one assignment of the symbols.

    `workspace` holds, per cNode, that of the first execution and that of every later one.
    `existing` is what the caller's gradients take before the step (`grads accumulate`), and
    `existing_host` that of those whose home is the host.
    """

    anode: Mapping[str, int]
    workspace: Mapping[str, tuple[int, int]]
    existing: int
    existing_host: int = 0


@dataclass(frozen=True)
class Amounts:
    """The same as expressions of the symbols: numbers of `forms`, equal sizes sharing one.

    `declared` are the expressions before rounding, each with the nodes that have it.
    `filled` are pairs of such an expression and the bytes that shape and type take, which
    must be no more, each with the aNodes that have them.
    """

    forms: tuple[Expr, ...]
    anode: Mapping[str, int]
    workspace: Mapping[str, tuple[int, int]]
    existing: tuple[int, ...]
    declared: Mapping[Expr, Sequence[Sized]]
    filled: Mapping[tuple[Expr, Expr], Sequence[ANode]]
    existing_host: tuple[int, ...] = ()

    def at(self, env: Mapping[str, int]) -> Sizes:
        """The bytes at `env`, which binds every symbol."""
        number = [value(form, env) for form in self.forms]
        return Sizes(
            {name: number[form] for name, form in self.anode.items()},
            {name: (number[a], number[b]) for name, (a, b) in self.workspace.items()},
            sum(number[form] for form in self.existing),
            sum(number[form] for form in self.existing_host),
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replay form of a cNode."""

    cnode: CNode

    @property
    def span(self) -> Span | None:
        return self.cnode.span


Sized: TypeAlias = ANode | CNode | Replayed
"""Where an expression stands: as the size of an aNode, or as a workspace."""


def what_of(sized: Sized) -> str:
    """The role of the expression at that place, in words."""
    match sized:
        case ANode(name):
            return f"the size of %{name}"
        case CNode(name):
            return f"the workspace of {name}"
        case Replayed(CNode(name)):
            return f"the workspace of {name}'s replay form"
        case _:
            assert_never(sized)


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


class _SizeReader:
    """Collects the expressions, rounded up, and what is wrong with them."""

    def __init__(self, program: Program):
        self.unit = program.target.granularity_bytes
        self.known = {s.name for s in program.symbols}
        self.sample = {s.name: s.sample for s in program.symbols}
        self.box = {s.name: (s.low, s.high) for s in program.symbols}
        self.diagnostics: list[Diagnostic] = []
        self.forms: list[Expr] = []
        self.number: dict[Expr, int] = {}
        """For each valid expression: the number of its rounded form."""
        self.declared: dict[Expr, list[Sized]] = {}
        self.filled: dict[tuple[Expr, Expr], list[ANode]] = {}

    def refuse(self, message: str, span: Span | None = None) -> None:
        self.diagnostics.append(Diagnostic("FB0802", message, span))

    def limit(self, number: int | None, what: str, span: Span | None = None) -> None:
        """FB0827 for what no machine has: it would not even print."""
        if number is not None and abs(number) > MOST:
            hint = "correct the number"
            message = f"{what} is above 2^63 - 1"
            self.diagnostics.append(Diagnostic("FB0827", message, span, hint=hint))

    def read(self, expr: Expr, sized: Sized) -> int:
        """The number of the rounded form of `expr`."""
        self.declared.setdefault(expr, []).append(sized)
        if expr not in self.number:
            before = len(self.diagnostics)
            self.check(expr, what_of(sized), sized.span)
            if len(self.diagnostics) > before:
                return 0
            self.number[expr] = len(self.forms)
            self.forms.append(expr if self.unit == 1 else RoundUp(expr, self.unit))
        return self.number[expr]

    def check(self, expr: Expr, what: str, span: Span | None) -> None:
        for name in sorted(names_of(expr) - self.known):
            self.refuse(f"{what} depends on the symbol {name}, which is not declared", span)
        if any(n < 1 for n in _divisors(expr)):
            self.refuse(f"{what} divides by zero, or by less", span)
        elif not self.diagnostics:
            self.limit(value(expr, self.sample), f"{what} at the sample", span)
            if max(map(abs, bounds(expr, self.box))).bit_length() > MOST_BITS:
                message = f"{what} has more than {MOST_BITS} bits in the ranges of the symbols"
                hint = "narrow the range, or correct the expression"
                self.diagnostics.append(Diagnostic("FB0827", message, span, hint=hint))

    def read_shape(self, a: ANode) -> None:
        """The values that the storage of `a` must hold; constants that fit are passed over."""
        least = least_bytes(a)
        if least is None:
            self.refuse(f"%{a.name} has the unknown type {a.dtype}", a.span)
            return
        for name in sorted(names_of(least) - self.known):
            self.refuse(f"the shape of %{a.name} has the undeclared symbol {name}", a.span)
        if any(n < 1 for n in _divisors(least)):
            self.refuse(f"the shape of %{a.name} divides by zero, or by less", a.span)
            return
        match a.size, least:
            case Const(size), Const(needed) if size >= needed:
                return
            case _ if a.kind not in MAY_OVERLAP:
                self.filled.setdefault((a.size, least), []).append(a)


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
    """The sizes as expressions, or why there are none (FB0802, FB0827)."""
    unit = program.target.granularity_bytes
    if unit < 1:
        return (Diagnostic("FB0802", f"the target's granularity is {unit} bytes, not positive"),)
    reader, graph = _SizeReader(program), program.graph
    for s in program.symbols:
        for end in (s.low, s.high):
            reader.limit(end, f"an end of the range of {s.name}", s.span)
    reader.limit(unit, "the target's granularity")
    for c in graph.cnodes:
        reader.limit(c.time_ns, f"the time of {c.name}, in nanoseconds,", c.span)
        if c.replay is not None:
            what = f"the time of {c.name}'s replay form, in nanoseconds,"
            reader.limit(c.replay.time_ns, what, c.span)
    if reader.diagnostics:
        return tuple(reader.diagnostics)
    anode = {a.name: reader.read(a.size, a) for a in graph.anodes}
    for a in graph.anodes:
        reader.read_shape(a)
    workspace = {}
    for c in graph.cnodes:
        first = again = reader.read(c.workspace, c)
        if c.replay is not None:
            again = reader.read(c.replay.workspace, Replayed(c))
        workspace[c.name] = first, again
    existing: list[int] = []
    existing_host: list[int] = []
    if program.binding.grads == "accumulate":
        for p in program.binding.params:
            if p.grad is not None:
                away = statements.alias[p.grad] in statements.host_end
                (existing_host if away else existing).append(anode[statements.alias[p.name]])
    if reader.diagnostics:
        return tuple(reader.diagnostics)
    forms = tuple(reader.forms)
    sums = tuple(existing), reader.declared, reader.filled, tuple(existing_host)
    return Amounts(forms, anode, workspace, *sums)


def too_small(a: ANode, size: int, least: int, at: str = "") -> Diagnostic:
    """FB0825."""
    message = f"%{a.name} is declared with {size} bytes{at}; its shape and type take {least} bytes"
    return Diagnostic("FB0825", message, a.span, hint="correct its bytes, or its shape")


def measure(
    statements: Statements, amounts: Amounts, env: Mapping[str, int]
) -> Sizes | tuple[Diagnostic, ...]:
    """The sizes at `env`, or what is wrong with them there (FB0802, FB0825)."""
    diagnostics: list[Diagnostic] = []
    for expr, places in amounts.declared.items():
        if (size := value(expr, env)) < 0:
            for place in places:
                message = f"{what_of(place)} is {size} bytes, less than none"
                diagnostics.append(Diagnostic("FB0802", message, place.span))
    for (expr, needed), places in amounts.filled.items():
        if 0 <= (size := value(expr, env)) < (least := value(needed, env)):
            diagnostics += (too_small(a, size, least) for a in places)
    sizes = amounts.at(env)
    pairs = [(c, *pair) for c, some in statements.takes_over.items() for pair in some]
    for name, ended, named in pairs:
        a, b = sizes.anode[ended], sizes.anode[named]
        if a != b:
            message = (
                f"{name} names the storage of %{ended} ({a} bytes) %{named}, which "
                f"is declared with {b} bytes"
            )
            diagnostics.append(Diagnostic("FB0802", message, statements.cnodes[name].span))
    return tuple(diagnostics) or sizes
