"""Budgets as people write them: `8GiB`, `50%`, `range:0.5`, or bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ..ir.analysis.liveness import floor_bytes
from ..ir.diagnostics import Diagnostic, FBError, nearest
from ..ir.program import Budget, Program
from ..ir.rewrites.packs import erased
from ..ir.semantics.simulate import simulate
from ..ir.units import format_bytes
from ..report.subject import store_all

__all__ = [
    "Baseline",
    "BudgetKind",
    "BudgetText",
    "format_bytes",
    "parse_budget",
    "parse_budgets",
    "resolve_budget",
]

BudgetKind = Literal["device", "activation", "host"]

_PREFIXES = "KMGTP"
UNITS: dict[str, int] = {
    "B": 1,
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate(_PREFIXES)},
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate(_PREFIXES)},
}
"""Bytes per unit. Also accepted: all lower case, and `kB`; not `Gb`, which means bits."""

_SPELLINGS = {"kB": 1000, **UNITS, **{unit.lower(): size for unit, size in UNITS.items()}}
_NUMBER = re.compile(r"([-+]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30}))\s*((?!\d)\S*)")
"""With no more digits than any size has; Python itself refuses to read 4300."""
MOST_BUDGETS = 1000
_COUNT = re.compile(r"\d{1,4}")
_FORMS = "write for example 8GiB, 500MB, 50%, or range:0.5"
LEAST, AUTO = "least", "auto"


@dataclass(frozen=True, slots=True)
class BudgetText:
    """A budget before the model is known.

    `form` says what `amount` counts: bytes, a share of the peak with nothing
    recomputed, or a place between the floor (0) and that peak (1); for `least`, which is
    found by planning (`plans/sweep/least.py`), and `auto`, which is what a device has free
    (`plans/fit/auto.py`), nothing.
    """

    text: str
    kind: BudgetKind
    form: Literal["bytes", "share", "range", "least", "auto"]
    amount: Fraction


@dataclass(frozen=True, slots=True)
class Baseline:
    """The step with nothing recomputed nor packed, and the least that any plan needs, in bytes.

    `floor_at` and `activation_floor_at` name the cNode whose working set is the floor.
    """

    peak_bytes: int
    activation_peak_bytes: int
    time_ns: int
    floor_bytes: int
    floor_at: str
    activation_floor_bytes: int
    activation_floor_at: str

    @staticmethod
    def of(program: Program) -> Baseline:
        program = erased(program)
        trace = simulate(program, store_all(program))
        return Baseline(
            trace.peak_bytes,
            trace.activation_peak_bytes,
            trace.time_ns,
            *floor_bytes(program, "device"),
            *floor_bytes(program, "activation"),
        )


def parse_budget(
    value: str | int, kind: BudgetKind = "device", *, may_be_least: bool = False
) -> BudgetText:
    """Reads a budget. An `int` counts bytes; a `str` needs a unit, `%` or `range:`, or is `least`
    or `auto` where one plan is to be made.

    One of the host has no peak to be a share of, so only bytes do there. FB0450 where it
    cannot be read, FB0451 where it is not more than zero.
    """
    if may_be_least and value == LEAST:
        return BudgetText(LEAST, kind, "least", Fraction(0))
    if may_be_least and value == AUTO and kind == "device":
        return BudgetText(AUTO, kind, "auto", Fraction(0))
    budget = _parse(value, kind)
    if kind == "host" and budget.form != "bytes":
        raise _unreadable(budget.text, "a host budget is a number of bytes; write for example 8GiB")
    return budget


def parse_budgets(value: str | int, kind: BudgetKind) -> tuple[BudgetText, ...]:
    """`20%..100%:9` is nine budgets evenly apart; `8GiB,12GiB` two. FB0450, FB0451."""
    if not isinstance(value, str):
        return (parse_budget(value, kind),)
    budgets: list[BudgetText] = []
    for part in value.split(","):
        low, dots, rest = part.partition("..")
        if not dots:
            budgets.append(parse_budget(part, kind))
            continue
        high, _, count = rest.rpartition(":")
        if not _COUNT.fullmatch(count) or not 2 <= int(count) <= MOST_BUDGETS:
            hint = f"write LOW..HIGH:COUNT with a count from 2 to {MOST_BUDGETS}, as in 20%..100%:9"
            raise _unreadable(part, hint, "budgets")
        ends = parse_budget(low, kind), parse_budget(high, kind)
        if ends[0].form != ends[1].form:
            raise _unreadable(part, "give both ends in bytes, in percent, or as range:", "budgets")
        budgets += _between(*ends, int(count))
    return tuple(budgets)


def _between(low: BudgetText, high: BudgetText, count: int) -> Iterator[BudgetText]:
    for i in range(count):
        amount = low.amount + (high.amount - low.amount) * i / (count - 1)
        match low.form:
            case "bytes":
                text = f"{int(amount)}B"
            case "share":
                text = f"{float(100 * amount):.4g}%"
            case "range":
                text = f"range:{float(amount):.4g}"
            case "least" | "auto":
                raise AssertionError("no end of a range")
        yield BudgetText(text, low.kind, low.form, amount)


def _parse(value: str | int, kind: BudgetKind) -> BudgetText:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _unreadable(str(value), f"a budget is a number of bytes or a text; {_FORMS}")
    text = str(value).strip()
    if text == LEAST:
        hint = f"least is found by planning one schedule, and is no bound here; {_FORMS}"
        raise _unreadable(text, hint)
    if isinstance(value, int):
        return _positive(BudgetText(f"{value}B", kind, "bytes", Fraction(value)))
    if text.startswith("range:"):
        return _range(text, kind)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _unreadable(text, _FORMS)
    number, unit = Fraction(match[1]), match[2]
    if unit == "%":
        return _positive(BudgetText(text, kind, "share", number / 100))
    if not unit:
        if number <= 0:
            return _positive(BudgetText(text, kind, "bytes", number))
        raise _unreadable(text, f"it has no unit; {_FORMS}")
    if unit not in _SPELLINGS:
        same = [known for known in UNITS if known.lower() == unit.lower()]
        meant = f' Did you mean "{same[0]}"?' if same else nearest(unit, UNITS)
        hint = f'there is no unit "{unit}".{meant} {_FORMS[0].upper()}{_FORMS[1:]}'
        raise _unreadable(text, hint)
    return _positive(BudgetText(text, kind, "bytes", number * _SPELLINGS[unit]))


def _range(text: str, kind: BudgetKind) -> BudgetText:
    match = _NUMBER.fullmatch(text.removeprefix("range:"))
    if match is None or match[2]:
        raise _unreadable(text, "write for example range:0.5")
    amount = Fraction(match[1])
    if amount < 0:
        raise _not_positive(text, kind, "a range starts at 0, the floor")
    return BudgetText(text, kind, "range", amount)


def _positive(budget: BudgetText) -> BudgetText:
    if budget.amount <= 0 or (budget.form == "bytes" and budget.amount < 1):
        raise _not_positive(budget.text, budget.kind, "a budget is more than zero")
    return budget


def _unreadable(text: str, hint: str, what: str = "budget") -> FBError:
    message = f'cannot read the {what} "{text}"'
    return FBError(Diagnostic("FB0450", message, hint=hint), usage=True)


def _not_positive(text: str, kind: BudgetKind, why: str) -> FBError:
    name = "budget" if kind == "device" else f"{kind} budget"
    return FBError(Diagnostic("FB0451", f'{name} "{text}": {why}', hint=_FORMS), usage=True)


def resolve_budget(budget: BudgetText, baseline: Baseline) -> Budget:
    """The budget in bytes, rounded down; for `least` the floor, below which no plan is."""
    if budget.kind == "activation":
        peak, floor = baseline.activation_peak_bytes, baseline.activation_floor_bytes
    else:
        peak, floor = baseline.peak_bytes, baseline.floor_bytes
    match budget.form:
        case "bytes":
            amount = budget.amount
        case "share":
            amount = budget.amount * peak
        case "range":
            amount = floor + budget.amount * (peak - floor)
        case "least":
            amount = Fraction(floor)
        case "auto":
            raise AssertionError("found by `plans/fit/auto.py` before")
    return Budget(int(amount), budget.kind)
