"""The largest value of a symbol for which a budget holds, and the step that blocks the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..arithmetic.intervals import Box, direction, names_of
from ..arithmetic.profile import Profile, profile_of
from ..arithmetic.walk import StepBytes
from ..inquiry import Inquiry
from ..read.events import Event
from ..read.sizes import Amounts, value
from ..read.statements import Statements
from ..smt import Late, OutOfTime
from .memory import ByteLimits
from .memory_ranges import Everywhere, Somewhere, prove_ranges


@dataclass(frozen=True)
class Greatest:
    """`value` is proven to hold, with `bound` at `env`; None where no value does.

    `gap` is a smaller value that does not hold (None: all smaller ones do, proven).
    `blocked` shows the steps above the limits at the next value, or at the least one.
    """

    value: int | None
    bound: StepBytes | None
    env: Mapping[str, int]
    gap: Somewhere | None
    blocked: Somewhere | None


def find_largest(
    statements: Statements,
    events: list[Event],
    amounts: Amounts,
    box: Box,
    symbol: str,
    limits: ByteLimits,
    inquiry: Inquiry,
) -> Greatest | OutOfTime:
    """Searches by arithmetic, then z3 proves the value, and refutes the next one."""
    number = [value(form, {}) if not names_of(form) else None for form in amounts.forms]
    profile = profile_of(statements, events, amounts, number)
    low, high = box[symbol]
    late = OutOfTime("the time limit was reached in the search")
    try:
        last = _search(profile, amounts, box, symbol, limits, inquiry)
    except Late:
        return late

    def prove(least: int, most: int) -> Everywhere | Somewhere | OutOfTime:
        part = {**box, symbol: (least, most)}
        return prove_ranges(statements, events, amounts, part, limits, inquiry)

    blocked: Somewhere | None = None
    if last is None or last < high:
        following = low if last is None else last + 1
        answer = prove(following, following)
        if isinstance(answer, OutOfTime):
            return answer
        if isinstance(answer, Everywhere):
            return OutOfTime("z3 and the plain walk do not agree on the bytes")
        blocked = answer
    if last is None:
        return Greatest(None, None, {}, None, blocked)
    whole = prove(low, last)
    if isinstance(whole, OutOfTime):
        return whole
    if isinstance(whole, Everywhere):
        return Greatest(last, whole.bound, whole.env, None, blocked)
    alone = prove(last, last)
    match alone:
        case Everywhere(bound, env):
            return Greatest(last, bound, env, whole, blocked)
        case Somewhere():
            return OutOfTime("z3 and the plain walk do not agree on the bytes")
        case OutOfTime():
            return alone


def _search(
    profile: Profile,
    amounts: Amounts,
    box: Box,
    symbol: str,
    limits: ByteLimits,
    inquiry: Inquiry,
) -> int | None:
    """The largest value that holds for all values of the other symbols; None: there is none.
    Raises `Late`.

    Halves of the range, the upper one first. Where every size rises the budget holds up to
    some value, so one look at the least value of a half decides whether to go into it.
    """
    rises = all(direction(form, symbol, box) in ("flat", "rises") for form in amounts.forms)

    def broken(part: Box, *, lowest: bool) -> bool:
        """Asks whether some row is above its limit; `lowest`: everywhere in the part."""
        for rows, limit in (
            (profile.device, limits.device),
            (profile.activation, limits.activation),
            (profile.host, limits.host),
        ):
            if limit is None:
                continue
            count = rows.lowest(part) if lowest else rows.greatest(part, inquiry)[0]
            if count > limit:
                return True
        return False

    parts = [box[symbol]]
    while parts:
        inquiry.check()
        low, high = parts.pop()
        if not broken({**box, symbol: (high, high)}, lowest=False):
            return high
        if low == high:
            continue
        least = {**box, symbol: (low, low)}
        if (rises and broken(least, lowest=False)) or broken(
            {**box, symbol: (low, high - 1)}, lowest=True
        ):
            continue
        middle = (low + high - 1) // 2
        parts += (
            [(low, middle), (middle + 1, high - 1)] if middle + 1 <= high - 1 else [(low, middle)]
        )
    return None
