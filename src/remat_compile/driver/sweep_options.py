"""What a sweep is asked for: lists of budgets and of planners."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from ..ir.diagnostics import Diagnostic, FBError
from ..planners.registry import parse_planners
from .budget import BudgetText, parse_budget
from .files import keep_text
from .request import Errors

if TYPE_CHECKING:
    from ..planners.contract import Planner

__all__ = ["parse_budgets", "read_sweep"]

MOST_BUDGETS = 1000
_COUNT = re.compile(r"\d{1,4}")
USUAL = "20%..100%:9"
"""The budgets of a sweep that names none, of the activations."""

Texts = str | Sequence[str | int]


def read_sweep(
    errors: Errors,
    budgets: Texts | None,
    activation_budgets: Texts | None,
    planners: str | Sequence[str | Planner],
) -> tuple[tuple[Planner, ...], tuple[BudgetText, ...]]:
    """The planners and the budgets; adds to `errors` what is wrong with them."""
    if budgets is not None and activation_budgets is not None:
        errors.add("FB0452", "two lists of budgets were given", "give one of them")
    found: list[BudgetText] = []
    if budgets is not None:
        found += _budgets(errors, budgets, "device")
    if activation_budgets is not None or budgets is None:
        found += _budgets(errors, activation_budgets or USUAL, "activation")
    chosen: list[Planner] = []
    for item in [planners] if isinstance(planners, str) else planners:
        if not isinstance(item, str):
            chosen.append(item)
            continue
        keep_text("<planner>", item)
        chosen += errors.collect(lambda text=item: parse_planners(text)) or ()  # type: ignore[misc]
    return tuple(chosen), tuple(found)


def _budgets(
    errors: Errors, texts: Texts, kind: Literal["device", "activation"]
) -> Iterator[BudgetText]:
    for text in [texts] if isinstance(texts, str) else texts:
        if isinstance(text, str):
            yield from errors.collect(lambda t=text: parse_budgets(t, kind)) or ()  # type: ignore[misc]
        elif (one := errors.collect(lambda t=text: parse_budget(t, kind))) is not None:  # type: ignore[misc]
            yield one


def parse_budgets(text: str, kind: Literal["device", "activation"]) -> tuple[BudgetText, ...]:
    """`20%..100%:9` is nine budgets evenly apart; `8GiB,12GiB` two. FB0450, FB0451."""
    found: list[BudgetText] = []
    for part in text.split(","):
        low, dots, rest = part.partition("..")
        if not dots:
            found.append(parse_budget(part, kind))
            continue
        high, _, count = rest.rpartition(":")
        if not _COUNT.fullmatch(count) or not 2 <= int(count) <= MOST_BUDGETS:
            hint = f"write LOW..HIGH:COUNT with a count from 2 to {MOST_BUDGETS}, as in 20%..100%:9"
            raise _unreadable(part, hint)
        ends = parse_budget(low, kind), parse_budget(high, kind)
        if ends[0].form != ends[1].form:
            raise _unreadable(part, "give both ends in bytes, in percent, or as range:")
        found += _between(*ends, int(count))
    return tuple(found)


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
        yield BudgetText(text, low.kind, low.form, amount)


def _unreadable(text: str, hint: str) -> FBError:
    message = f'cannot read the budgets "{text}"'
    return FBError(Diagnostic("FB0450", message, hint=hint), usage=True)
