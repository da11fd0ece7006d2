"""Obligation 2 for all values of the symbols in their ranges, or one value that breaks it.

A symbol along which every size rises (or falls) is fixed where all are greatest: the
corner lemma. Where that fixes all of them, the corner decides; z3 has the others range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir.diagnostics import Diagnostic
from ...ir.expr import Expr, Sym
from ...ir.span import Span
from ..arithmetic.intervals import Box, bounds, corner, names_of
from ..arithmetic.profile import Profile, profile_of
from ..arithmetic.shapes import is_at_least
from ..arithmetic.terms import Terms, symbol_constant, total
from ..arithmetic.walk import StepBytes
from ..inquiry import Inquiry
from ..read.events import Event
from ..read.sizes import Amounts, too_small, value, what_of
from ..read.statements import Statements
from ..smt import Encoding, Late, Model, NoModel, OutOfTime, numeral
from .memory import ByteLimits, Excess, Tally, encode_memory, prove_memory


@dataclass(frozen=True)
class Everywhere:
    """Proven: no step takes more than `bound` for any value; `env` is where it is reached."""

    bound: StepBytes
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
    limits: ByteLimits,
    inquiry: Inquiry,
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
        return _at(statements, events, amounts, fixed, limits, inquiry)
    number = [
        value(form, fixed) if free.keys().isdisjoint(names_of(form)) else None
        for form in amounts.forms
    ]
    profile = profile_of(statements, events, amounts, number)
    try:
        outcome = _over_rows(profile, fixed, free, limits, inquiry)
    except Late:
        return OutOfTime("the time limit was reached in the search for the greatest size")
    if isinstance(outcome, dict):
        return _at(statements, events, amounts, outcome, limits, inquiry)
    if isinstance(outcome, OutOfTime):
        return outcome

    def ceilings(row: int) -> tuple[Tally, Tally]:
        return profile.device.above(row), profile.activation.above(row)

    encoding, _ = encode_memory(
        statements,
        events,
        amounts,
        number,
        fixed,
        ceilings,
        profile.host.above,
        keep_rows=False,
    )
    match answer := encoding.check(inquiry, all_models=False):
        case OutOfTime():
            return answer
        case Model():
            return OutOfTime("z3 and the plain walk do not agree on the bytes")
        case NoModel():
            return outcome


def _over_rows(
    profile: Profile,
    fixed: Mapping[str, int],
    free: Box,
    limits: ByteLimits,
    inquiry: Inquiry,
) -> Everywhere | dict[str, int] | OutOfTime:
    """The maxima of the rows, by z3, or symbols for which one is above the limits."""
    box = {**{name: (n, n) for name, n in fixed.items()}, **free}
    greatest = [rows.greatest(box, inquiry) for rows in profile.all]
    bound, where = StepBytes(*(most for most, _ in greatest)), [env for _, env in greatest]
    while True:
        for count, limit, env in zip(bound.all, limits.all, where, strict=True):
            if limit is not None and count > limit:
                return env
        higher = _ask(profile, fixed, free, bound, inquiry)
        if higher is None:
            return Everywhere(bound, where[0])
        if isinstance(higher, OutOfTime):
            return higher
        for index, rows in enumerate(profile.all):
            if rows.at(higher) > bound.all[index]:
                where[index] = higher
        raised = StepBytes(
            *(max(n, rows.at(higher)) for n, rows in zip(bound.all, profile.all, strict=True))
        )
        if raised == bound:
            return OutOfTime("z3 and the plain walk do not agree on the bytes")
        bound = raised


def _at(
    statements: Statements,
    events: list[Event],
    amounts: Amounts,
    env: Mapping[str, int],
    limits: ByteLimits,
    inquiry: Inquiry,
) -> Everywhere | Somewhere | OutOfTime:
    match outcome := prove_memory(statements, events, amounts, env, limits, inquiry):
        case StepBytes():
            return Everywhere(outcome, env)
        case Excess():
            return Somewhere(outcome, env)
        case OutOfTime():
            return outcome


def _ask(
    profile: Profile,
    fixed: Mapping[str, int],
    free: Box,
    bound: StepBytes,
    inquiry: Inquiry,
) -> dict[str, int] | OutOfTime | None:
    """Where some row is above `bound`; None is z3's proof that it is nowhere."""
    box = {**{name: (n, n) for name, n in fixed.items()}, **free}
    closed, left = profile.cover(box, bound.all, inquiry)
    for boxes, ask in ((closed, _ask_sizes), (left, _ask_rows)):
        encoding = Encoding()
        for inner in boxes:
            inquiry.check()
            part = {name: ends for name, ends in inner.items() if name in free}
            ask(encoding, Terms(encoding, fixed, part), profile, inner, bound)
            encoding.cut()
        answer = encoding.check(inquiry, all_models=False)
        if isinstance(answer, OutOfTime):
            return answer
        if isinstance(answer, Model):
            return {**fixed, **_values(answer, free)}
    answer = _uncovered([*closed, *left], free).check(inquiry)
    if isinstance(answer, NoModel):
        return None
    return OutOfTime("the boxes do not cover the ranges of the symbols")


def _ask_sizes(
    encoding: Encoding, terms: Terms, profile: Profile, box: Box, bound: StepBytes
) -> None:
    """Asks whether a size exceeds its greatest value in a box, or a row of these."""
    highest: dict[int, int] = {}
    for form, expr in zip(profile.device.forms, profile.device.exprs, strict=True):
        highest[form] = bounds(expr, box)[1]
        encoding.ask(f"(> {terms.of(expr)} {numeral(highest[form])})")
    for rows, limit in zip(profile.all, bound.all, strict=True):
        for tally in rows.tallies:
            parts = [f"(* {count} {highest[form]})" for form, count in tally.forms.items()]
            encoding.ask(f"(> {total([*parts, numeral(tally.fixed)])} {numeral(limit)})")


def _ask_rows(
    encoding: Encoding, terms: Terms, profile: Profile, box: Box, bound: StepBytes
) -> None:
    """Asks whether a row exceeds its bound somewhere in a box."""
    exprs = dict(zip(profile.device.forms, profile.device.exprs, strict=True))
    for rows, limit in zip(profile.all, bound.all, strict=True):
        for tally in rows.tallies:
            parts = [f"(* {n} {terms.of(exprs[form])})" for form, n in tally.forms.items()]
            encoding.ask(f"(> {total([*parts, numeral(tally.fixed)])} {numeral(limit)})")


def _uncovered(boxes: Sequence[Box], free: Box) -> Encoding:
    """Asks whether some value of the symbols lies in none of the boxes."""
    encoding = Encoding()
    terms = Terms(encoding, {}, free)
    names = {name: terms.of(Sym(name)) for name in free}
    for box in boxes:
        inside = " ".join(
            f"(<= {numeral(box[name][0])} {constant} {numeral(box[name][1])})"
            for name, constant in names.items()
        )
        encoding.state(f"(assert (not (and true {inside})))")
    encoding.ask("true")
    return encoding


def _values(model: Model, free: Box) -> dict[str, int]:
    """The symbols in a model; one that it leaves open may have any value."""
    return {name: model.values.get(symbol_constant(name), free[name][0]) for name in free}


def check_sizes(
    statements: Statements, amounts: Amounts, box: Box, inquiry: Inquiry
) -> tuple[Diagnostic, ...] | OutOfTime:
    """Sizes that are negative somewhere in `box`, storage that changes its size (FB0822), and
    storage that is smaller than its tensor (FB0825)."""
    diagnostics: list[Diagnostic] = []
    for expr, places in amounts.declared.items():
        if bounds(expr, box)[0] >= 0:
            continue
        env = _somewhere((expr,), "(< {} 0)", box, inquiry)
        if isinstance(env, OutOfTime):
            return env
        if env is not None:
            bad = f"is {value(expr, env)} bytes at {_shown(env, expr)}, less than none"
            diagnostics += (_refusal(f"{what_of(p)} {bad}", p.span) for p in places)
    for (expr, needed), places in amounts.filled.items():
        if is_at_least(expr, needed, box):
            continue
        env = _somewhere((expr, needed), "(and (<= 0 {0}) (< {0} {1}))", box, inquiry)
        if isinstance(env, OutOfTime):
            return env
        if env is not None:
            shown = _shown(env, expr, needed)
            at = f" at {shown}" if shown else ""
            diagnostics += (too_small(a, value(expr, env), value(needed, env), at) for a in places)
    pairs = [(c, *pair) for c, some in statements.takes_over.items() for pair in some]
    for name, ended, named in pairs:
        a, b = amounts.forms[amounts.anode[ended]], amounts.forms[amounts.anode[named]]
        if a == b:
            continue
        env = _somewhere((a, b), "(not (= {} {}))", box, inquiry)
        if isinstance(env, OutOfTime):
            return env
        if env is not None:
            message = (
                f"{name} names the storage of %{ended} ({value(a, env)} bytes at "
                f"{_shown(env, a, b)}) %{named}, which is declared with {value(b, env)} bytes"
            )
            diagnostics.append(_refusal(message, statements.cnodes[name].span))
    return tuple(diagnostics)


def _somewhere(
    exprs: tuple[Expr, ...], goal: str, box: Box, inquiry: Inquiry
) -> dict[str, int] | OutOfTime | None:
    """Symbols for which `goal` about the terms of `exprs` holds, or None: there are none."""
    encoding = Encoding()
    terms = Terms(encoding, {}, box)
    encoding.ask(goal.format(*map(terms.of, exprs)))
    match answer := encoding.check(inquiry):
        case OutOfTime():
            return answer
        case Model():
            return _values(answer, box)
        case NoModel():
            return None


def _refusal(message: str, span: Span | None) -> Diagnostic:
    return Diagnostic("FB0822", message, span, hint="narrow the range, or correct the expression")


def _shown(env: Mapping[str, int], *exprs: Expr) -> str:
    names = frozenset[str]().union(*map(names_of, exprs))
    return ", ".join(f"{name} = {env[name]}" for name in env if name in names)
