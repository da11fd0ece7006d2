"""Refusals without a plan: the reason, the budget that would fit, other planners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, Note
from ...ir.program import Budget, Program
from ...ir.wording import worded
from ...planners.auto import Auto
from ...planners.contract import Feasible, Infeasible, Optimal
from ...planners.eviction.dtr import Dtr
from ...planners.offmate.in_backward import for_updates
from ..budget import Baseline, format_bytes

if TYPE_CHECKING:
    from ...planners.contract import Planner

QUICK = 5000
QUICK_S = 10.0
"""cNodes up to which `dtr` is asked what it reaches, and how long it may take."""


def refusal(
    result: Infeasible,
    planner: Planner,
    name: str,
    program: Program,
    budget: Budget | None,
    baseline: Baseline,
) -> Diagnostic:
    """FB0466 with the least budget for which a plan was found, by this planner or by `dtr`,
    a proven lower bound on it, and what holds the memory; FB0475 where the host is too small."""
    if result.short_of == "host":
        return result.why
    of = "" if budget is None or budget.kind == "device" else " of activations"
    size = "memory" if budget is None else f"{format_bytes(budget.bytes)}{of}"
    least, dtr_fits = result, False
    if budget is not None and not isinstance(planner, Dtr) and planner != Auto():
        least, dtr_fits = _more(result, program, budget)
    notes = [Note(least.why.message, least.why.span), *least.why.notes]
    if least is not result:
        notes.insert(0, Note(result.why.message, result.why.span))
    if not least.names_both:
        notes += _figures(least)
    if once := program.header.run_once:
        notes.append(Note(f"{len(once)} computations of the forward are to run once"))
    hint = result.why.hint
    if dtr_fits:
        hint = worded("dtr finds a plan within it: give {planner}, or auto", planner="dtr")
    elif (minimum := least.min_budget) is not None:
        option = "budget" if minimum.kind == "device" else "activation_budget"
        text = f"give {{{option}}} or more" + (
            ", and {planner} or auto" if least is not result else ""
        )
        hint = worded(text, planner="dtr", **{option: f"{minimum.bytes}B"})
    peak = baseline.activation_peak_bytes if of else baseline.peak_bytes
    notes.append(Note(f"with nothing recomputed the step takes {peak} bytes{of}"))
    message = f"planner {name} finds no plan within {size}"
    return Diagnostic("FB0466", message, notes=tuple(notes), hint=hint)


def _figures(result: Infeasible) -> Iterator[Note]:
    """The least budget and the bound."""
    if result.min_budget is not None:
        yield Note(f"the least that a plan was found for is {result.min_budget.bytes} bytes")
    yield Note(f"no plan of any planner needs less than {result.floor_bytes} bytes")


def _more(result: Infeasible, program: Program, budget: Budget) -> tuple[Infeasible, bool]:
    """The refusal that knows the least budget, and whether `dtr` fits the budget."""
    if len(program.graph.cnodes) > QUICK:
        return result, False
    quick = for_updates(Dtr(rounds=0), program)
    other = quick.plan(program, budget, time_limit_s=QUICK_S)
    match other:
        case Optimal() | Feasible():
            return result, True
        case Infeasible(min_budget=Budget(bytes=theirs)):
            ours = result.min_budget
            if ours is not None and ours.bytes <= theirs:
                return result, False
            if result.floor_bytes <= other.floor_bytes:
                return other, False
            higher = replace(other, floor_bytes=result.floor_bytes)
            *_, floor = _figures(higher)
            return replace(higher, why=replace(other.why, notes=(*other.why.notes, floor))), False
        case _:
            return result, False
