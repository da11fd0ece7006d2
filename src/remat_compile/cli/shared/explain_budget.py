"""Answers of `explain` on budgets: whether one can be met, what holds it up, what bytes cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...ir.units import format_bytes, format_ns
from ...report.subject import place_of, shown

if TYPE_CHECKING:
    from ...ir.analysis.liveness import BudgetKind
    from ...ir.program import Budget
    from ...plans.budget import BudgetText
    from ...plans.sweep.prices import Prices
    from ...report.reasons import FloorReasons
    from ...report.subject import Subject

SHOWN = 10


@dataclass(frozen=True)
class Fit:
    """A budget held against the plan (`plan_bytes` of its kind), the floor, and, where it lies
    between them, a cheap planner (None: not asked, or no plan)."""

    budget: Budget
    plan_bytes: int
    floor: FloorReasons
    cheap_ns: int | None

    @staticmethod
    def of(subject: Subject, bound: BudgetText, time_limit_s: float) -> Fit:
        from ...plans.budget import Baseline, resolve_budget
        from ...plans.sweep.prices import cheap_plan
        from ...report.reasons import of_floor

        budget = resolve_budget(bound, Baseline.of(subject.program))
        kind: BudgetKind = "activation" if budget.kind == "activation" else "device"
        floor, trace = of_floor(subject, kind), subject.trace
        takes = trace.peak_bytes if budget.kind == "device" else trace.activation_peak_bytes
        between = floor.bytes <= budget.bytes < takes
        cheap = cheap_plan(subject.program, budget, time_limit_s) if between else None
        return Fit(budget, takes, floor, cheap)


def bounds_of(budget: str | None, activation_budget: str | None) -> list[BudgetText]:
    from ...plans.budget import parse_budget

    bounds = [] if budget is None else [parse_budget(budget)]
    return bounds + (
        [] if activation_budget is None else [parse_budget(activation_budget, "activation")]
    )


def fit_lines(subject: Subject, fit: Fit, all: bool) -> list[str]:
    """Return whether the plan fits, and what holds the floor up where it does not."""
    from ...plans.sweep.prices import PLANNER

    of = " of activations" * (fit.budget.kind == "activation")
    size, floor = f"{format_bytes(fit.budget.bytes)}{of}", fit.floor
    takes = f"{format_bytes(fit.plan_bytes)}{of}"
    if fit.budget.bytes >= fit.plan_bytes:
        return [f"the plan fits in {size}: it takes {takes}"]
    c = subject.program.graph.cnode[floor.cnode]
    place = f" at {shown(str(c.loc))}" if c.loc else ""
    needs = (
        f"{shown(c.name)} {shown(c.call.op)}{place} needs {format_bytes(floor.bytes)}{of} at once"
    )
    if fit.budget.bytes < floor.bytes:
        return [f"no plan fits in {size}: {needs}", *_owners(subject, floor, all)]
    lines = [f"the plan takes {takes}, and not {size}"]
    if fit.cheap_ns is not None:
        more = fit.cheap_ns - subject.trace.time_ns
        how = f"{format_ns(abs(more))} {'more' if more >= 0 else 'less'} a step"
        return [*lines, f"{PLANNER.name} has a plan within it, which takes {how}"]
    lines.append(
        f"{PLANNER.name} finds none within it, and no plan takes less than "
        f"{format_bytes(floor.bytes)}{of}; between, other planners may find one"
    )
    return [*lines, needs, *_owners(subject, floor, all)]


def _owners(subject: Subject, floor: FloorReasons, all: bool) -> list[str]:
    from ...plans.messages.table import columns

    words = {"held": "held by the caller", "read": "it reads", "made": "it makes", "workspace": ""}
    held = [o for o in floor.owners if o.why == "held"]
    needed = [o for o in floor.owners if o.why != "held"]
    rows = [("", "bytes", "why", "made at")]
    if held and not all:
        count, total = len(held), sum(o.bytes for o in held)
        rows.append((f"{count} tensors", format_bytes(total), words["held"], ""))
    for o in floor.owners if all else needed[:SHOWN]:
        place = place_of(subject.program, o.name)
        rows.append((shown(o.name), format_bytes(o.bytes), words[o.why], place))
    lines = columns(rows, "<><<")
    if len(needed) > SHOWN and not all:
        lines.append(f"and {len(needed) - SHOWN} more (--all)")
    return lines


def price_lines(subject: Subject, prices: Prices) -> list[str]:
    from ...plans.messages.table import columns

    peak = subject.trace.peak_bytes
    lines = [f"the plan takes {format_bytes(peak)} and {format_ns(subject.trace.time_ns)}"]
    if not subject.has_times:
        return [*lines[:-1], "without times, bytes have no price"]
    if prices.own_ns is None:
        lines.append(f"{prices.planner} finds no plan within that, so it knows no prices")
        return lines
    rows = [("budget", "more or less", "time of a step", "for each GiB")]
    for p in prices.prices:
        known = p.more_ns is not None and p.ns_per_gib is not None
        rows.append(
            (
                format_bytes(p.budget_bytes),
                signed(p.more_bytes, format_bytes),
                signed(p.more_ns or 0, format_ns) if known else "no plan found",
                signed(round(p.ns_per_gib or 0), format_ns) if known else "",
            )
        )
    lines += [*columns(rows, ">>>>"), f"by plans of {prices.planner}, simulated and not proven, "]
    lines[-1] += f"beside its own within the plan's peak ({format_ns(prices.own_ns)})"
    if not prices.is_complete:
        lines.append("the time limit left budgets out (--time-limit)")
    return lines


def signed(change: int, text_of: Callable[[int], str]) -> str:
    """A change with its sign, as in `+2 KiB`."""
    return f"{'+' if change > 0 else '-' if change < 0 else '±'}{text_of(abs(change))}"
