"""Obligation 2 for all values of the symbols in their ranges, or one value that breaks it.

A symbol along which every size rises (or falls) is fixed where all are greatest: the
corner lemma. Where that fixes all of them, the corner decides; z3 has the others range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..ir.diagnostics import Diagnostic
from ..ir.expr import Expr
from ..ir.span import Span
from .events import Event
from .memory import Bytes, Excess, Limits, encode_memory, guess, prove_memory, walk
from .profile import profile_of
from .ranges import Box, bounds, corner, names_of
from .sizes import Amounts, value
from .smt import Deadline, Encoding, Model, NoModel, OutOfTime
from .statements import Statements
from .terms import Terms, products_of_symbols, symbol_constant

__all__ = ["Everywhere", "Somewhere", "check_sizes", "prove_ranges"]

MOST_CASES = 64
"""How many values of symbols that are multiplied with each other are taken one by one."""


@dataclass(frozen=True)
class Everywhere:
    """Proven: no step takes more than `bound` for any value; `env` is where it is reached."""

    bound: Bytes
    env: Mapping[str, int]


@dataclass(frozen=True)
class Somewhere:
    """Refuted: at `env` the steps take these bytes, more than the limits."""

    excess: Excess
    env: Mapping[str, int]


def prove_ranges(
    statements: Statements,
    events: list[Event],
    amounts: Amounts,
    box: Box,
    limits: Limits,
    deadline: Deadline,
    *,
    use_corner: bool = True,
) -> Everywhere | Somewhere | OutOfTime:
    """The least bound over `box` that z3 proves within `limits`, or where they break.

    Sizes are not negative in `box` (`check_sizes`). Without `use_corner` z3 has all
    symbols range, as a second opinion on the lemma.
    """
    fixed = corner(amounts.forms, box) if use_corner else {}
    free = {name: ends for name, ends in box.items() if name not in fixed}
    if not free:
        return _at(statements, events, amounts, fixed, limits, deadline)
    profile = profile_of(statements, events, amounts)
    at_corner = {**{name: (n, n) for name, n in fixed.items()}, **free}
    device, at_device = profile.device.greatest(at_corner)
    activation, at_activation = profile.activation.greatest(at_corner)
    host, at_host = profile.host.greatest(at_corner)
    if limits.device is not None and device > limits.device:
        return _at(statements, events, amounts, at_device, limits, deadline)
    if limits.activation is not None and activation > limits.activation:
        return _at(statements, events, amounts, at_activation, limits, deadline)
    if limits.host is not None and host > limits.host:
        return _at(statements, events, amounts, at_host, limits, deadline)
    bound, env = Bytes(device, activation, host), at_device
    while True:
        higher = _ask(statements, events, amounts, fixed, free, bound, deadline)
        if higher is None:
            return Everywhere(bound, env)
        if isinstance(higher, OutOfTime):
            return higher
        seen = guess(walk(statements, events, amounts.at(higher)))
        if not limits.allow(seen):
            return _at(statements, events, amounts, higher, limits, deadline)
        raised = Bytes(
            max(bound.device, seen.device),
            max(bound.activation, seen.activation),
            max(bound.host, seen.host),
        )
        if raised == bound:
            return OutOfTime("z3 and the plain walk do not agree on the bytes")
        bound, env = raised, higher if seen.device == raised.device else env


def _at(
    statements: Statements,
    events: list[Event],
    amounts: Amounts,
    env: Mapping[str, int],
    limits: Limits,
    deadline: Deadline,
) -> Everywhere | Somewhere | OutOfTime:
    match found := prove_memory(statements, events, amounts, env, limits, deadline):
        case Bytes():
            return Everywhere(found, env)
        case Excess():
            return Somewhere(found, env)
        case OutOfTime():
            return found


def _ask(
    statements: Statements,
    events: Sequence[Event],
    amounts: Amounts,
    fixed: Mapping[str, int],
    free: Box,
    bound: Bytes,
    deadline: Deadline,
) -> dict[str, int] | OutOfTime | None:
    """Where some step takes more than `bound`; None is z3's proof that it is nowhere."""
    for case, rest in _cases(amounts.forms, free):
        if deadline.left_s <= 0:
            return OutOfTime("the time limit was reached while stating the obligation")
        known = {**fixed, **case}
        encoding, _ = encode_memory(statements, events, amounts, known, rest, bound)
        match answer := encoding.check(deadline, all_models=False):
            case OutOfTime():
                return answer
            case Model():
                return {**known, **_values(answer, rest)}
            case NoModel():
                pass
    return None


def _values(model: Model, free: Box) -> dict[str, int]:
    """The symbols in a model; one that it leaves open may have any value."""
    return {name: model.values.get(symbol_constant(name), free[name][0]) for name in free}


def _cases(exprs: Sequence[Expr], free: Box) -> Iterator[tuple[dict[str, int], Box]]:
    """Values for symbols that are multiplied, so that the rest is linear, and the rest.

    Where there would be too many, z3 gets the products (and may not decide in time).
    """
    taken: dict[str, tuple[int, int]] = {}
    while True:
        rest = {name: ends for name, ends in free.items() if name not in taken}
        joined = frozenset[str]().union(*(products_of_symbols(expr, rest) for expr in exprs))
        if not joined:
            break
        name = min(sorted(joined), key=lambda n: free[n][1] - free[n][0])
        taken[name] = free[name]
    if prod(high - low + 1 for low, high in taken.values()) > MOST_CASES:
        yield {}, free
        return
    for numbers in product(*(range(low, high + 1) for low, high in taken.values())):
        yield dict(zip(taken, numbers, strict=True)), rest


def check_sizes(
    statements: Statements, amounts: Amounts, box: Box, deadline: Deadline
) -> tuple[Diagnostic, ...] | OutOfTime:
    """Sizes that are negative somewhere in `box`, and storage that changes its size (FB0822)."""
    found: list[Diagnostic] = []
    for expr, places in amounts.declared.items():
        if bounds(expr, box)[0] >= 0:
            continue
        env = _somewhere((expr,), "(< {} 0)", box, deadline)
        if isinstance(env, OutOfTime):
            return env
        if env is not None:
            at = f"{value(expr, env)} bytes at {_shown(env, expr)}"
            found += (_refusal(f"{p.what} is {at}, less than none", p.span) for p in places)
    for name, (ended, named) in statements.accumulates.items():
        a, b = amounts.forms[amounts.anode[ended]], amounts.forms[amounts.anode[named]]
        if a == b:
            continue
        env = _somewhere((a, b), "(not (= {} {}))", box, deadline)
        if isinstance(env, OutOfTime):
            return env
        if env is not None:
            message = (
                f"{name} names the storage of %{ended} ({value(a, env)} bytes at "
                f"{_shown(env, a, b)}) %{named}, which is declared with {value(b, env)} bytes"
            )
            found.append(_refusal(message, statements.cnodes[name].span))
    return tuple(found)


def _somewhere(
    exprs: tuple[Expr, ...], goal: str, box: Box, deadline: Deadline
) -> dict[str, int] | OutOfTime | None:
    """Symbols for which `goal` about the terms of `exprs` holds, or None: there are none."""
    for case, rest in _cases(exprs, box):
        encoding = Encoding()
        terms = Terms(encoding, case, rest)
        encoding.ask(goal.format(*map(terms.of, exprs)))
        match answer := encoding.check(deadline):
            case OutOfTime():
                return answer
            case Model():
                return {**case, **_values(answer, rest)}
            case NoModel():
                pass
    return None


def _refusal(message: str, span: Span | None) -> Diagnostic:
    return Diagnostic("FB0822", message, span, hint="narrow the range, or correct the expression")


def _shown(env: Mapping[str, int], *exprs: Expr) -> str:
    names = frozenset[str]().union(*map(names_of, exprs))
    return ", ".join(f"{name} = {env[name]}" for name in env if name in names)
