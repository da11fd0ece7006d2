"""Bytes at one assignment of the symbols, and where the largest assignment decides.

The verifier evaluates sizes itself: a slip in the evaluator that planners use must
not reach the proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import assert_never

from ..ir.diagnostics import Diagnostic
from ..ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ..ir.program import Program
from .statements import Statements

__all__ = ["Sizes", "all_rise", "measure", "rises", "value"]


@dataclass(frozen=True)
class Sizes:
    """Bytes, rounded up to the target's granularity.

    `workspace` holds, per cNode, that of the first execution and that of every later one.
    `existing` is what the caller's gradients take before the step (`grads accumulate`).
    """

    anode: Mapping[str, int]
    workspace: Mapping[str, tuple[int, int]]
    existing: int


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


def rises(expr: Expr, low: Mapping[str, int]) -> bool:
    """Whether `expr` cannot fall as any symbol grows from its value in `low`.

    True is a proof, False is not one. A product rises where its factors rise and none is
    negative at `low`, where each of them is least. Divisors are positive.
    """
    match expr:
        case Const() | Sym():
            return True
        case Add(parts) | Max(parts):
            return all(rises(part, low) for part in parts)
        case Mul(parts):
            return all(rises(part, low) and value(part, low) >= 0 for part in parts)
        case FloorDiv(inner, n) | CeilDiv(inner, n) | RoundUp(inner, n):
            return n > 0 and rises(inner, low)
        case _:
            assert_never(expr)


def all_rise(program: Program) -> bool:
    """Whether every size and workspace is >= 0 and rises over the whole ranges."""
    low = {s.name: s.low for s in program.symbols}
    exprs = {a.size for a in program.graph.anodes}
    for c in program.graph.cnodes:
        exprs.add(c.workspace)
        if c.replay is not None:
            exprs.add(c.replay.workspace)
    return all(value(expr, low) >= 0 and rises(expr, low) for expr in exprs)


def measure(
    program: Program, statements: Statements, env: Mapping[str, int]
) -> Sizes | tuple[Diagnostic, ...]:
    """The sizes at `env`, or why there are none (FB0802)."""
    unit = program.target.granularity_bytes
    if unit < 1:
        return (Diagnostic("FB0802", f"the target's granularity is {unit} bytes, not positive"),)
    found: list[Diagnostic] = []

    def of(expr: Expr, what: str, node: object) -> int:
        span = getattr(node, "span", None)
        try:
            size = value(expr, env)
        except KeyError as unbound:
            message = f"{what} depends on the symbol {unbound.args[0]}, which is not declared"
            found.append(Diagnostic("FB0802", message, span))
            return 0
        except ZeroDivisionError:
            found.append(Diagnostic("FB0802", f"{what} divides by zero", span))
            return 0
        if size < 0:
            found.append(Diagnostic("FB0802", f"{what} is {size} bytes, less than none", span))
        return _ceil(size, unit) * unit

    graph = program.graph
    anode = {a.name: of(a.size, f"the size of %{a.name}", a) for a in graph.anodes}
    workspace = {}
    for c in graph.cnodes:
        first = of(c.workspace, f"the workspace of {c.name}", c)
        again = first
        if c.replay is not None:
            again = of(c.replay.workspace, f"the workspace of {c.name}'s replay form", c)
        workspace[c.name] = first, again
    existing = 0
    if program.binding.grads == "accumulate":
        params = (p for p in program.binding.params if p.grad is not None)
        existing = sum(anode[statements.alias[p.name]] for p in params)
    for name, (ended, named) in statements.accumulates.items():
        if anode[ended] != anode[named]:
            message = (
                f"{name} names the storage of %{ended} ({anode[ended]} bytes) %{named}, which "
                f"is declared with {anode[named]} bytes"
            )
            found.append(Diagnostic("FB0802", message, statements.cnodes[name].span))
    return tuple(found) or Sizes(anode, workspace, existing)
