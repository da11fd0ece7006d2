"""The worth of a GiB more or less: one cheap planner under budgets around the peak of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from time import monotonic

from ...ir.program import Budget, Program
from ...ir.semantics.simulate import simulate
from ...planners.contract import Feasible, Optimal
from ...planners.eviction.dtr import Dtr
from ...planners.offmate.in_backward import for_updates
from ...planners.registry import format_planner
from ...report.subject import Subject

GIB = 1 << 30
PLANNER = Dtr(rounds=0)
"""One walk over the step without restarts: tenths of a second for some hundred computations."""
SHARES = tuple(Fraction(share, 100) for share in (80, 90, 100, 110, 125))
"""Shares of the plan's peak."""


@dataclass(frozen=True, slots=True)
class Price:
    """A budget beside the plan's peak: what a step takes more under it (`more_ns`) by the planner
    that is asked for both, and that for each GiB between them. None where it finds no plan."""

    budget_bytes: int
    more_bytes: int
    more_ns: int | None = None
    ns_per_gib: float | None = None


@dataclass(frozen=True)
class Prices:
    """`own_ns` is what the planner takes within the plan's own peak; None where it finds nothing.
    `is_complete` says that the time limit left no budget out."""

    planner: str
    own_ns: int | None
    prices: tuple[Price, ...]
    is_complete: bool


def prices_around(
    subject: Subject, time_limit_s: float, say: Callable[[str], None] = lambda _: None
) -> Prices:
    """Prices of less and of more than the peak, those first that are nearest to it; budgets lie
    between the floor and what the step takes with nothing recomputed. Nothing is proven."""
    peak, deadline = subject.trace.peak_bytes, monotonic() + time_limit_s
    time_ns_of: dict[int, int | None] = {}
    budgets = list(_budgets(subject))
    for budget in sorted(budgets, key=lambda b: (abs(b - peak), b)):
        if (left_s := deadline - monotonic()) <= 0:
            break
        say(f"{format_planner(PLANNER)} within {budget} bytes")
        time_ns_of[budget] = cheap_plan(subject.program, Budget(budget, "device"), left_s)
    own = time_ns_of.get(peak)
    prices = tuple(
        _price(b, peak, time_ns_of[b], own) for b in budgets if b in time_ns_of and b != peak
    )
    return Prices(format_planner(PLANNER), own, prices, len(time_ns_of) == len(budgets))


def _budgets(subject: Subject) -> Iterator[int]:
    peak, floor = subject.trace.peak_bytes, subject.floor[0]
    for share in SHARES:
        if share == 1 or floor <= share * peak <= subject.without.trace.peak_bytes:
            yield int(share * peak)


def _price(budget: int, peak: int, took_ns: int | None, own_ns: int | None) -> Price:
    if took_ns is None or own_ns is None:
        return Price(budget, budget - peak)
    more = took_ns - own_ns
    return Price(budget, budget - peak, more, more / (abs(budget - peak) / GIB))


def cheap_plan(program: Program, budget: Budget, time_limit_s: float) -> int | None:
    """Nanoseconds of a plan within the budget by the cheap planner, simulated; None for none."""
    result = for_updates(PLANNER, program).plan(program, budget, time_limit_s=time_limit_s)
    if not isinstance(result, Optimal | Feasible):
        return None
    return simulate(program, result.schedule).time_ns
