"""Why there is no plan, what would fit, and who can plan it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ir.diagnostics import Diagnostic, Note
from ..ir.program import Budget, Program
from ..planners.contract import Infeasible
from ..planners.dtr import Dtr
from .budget import Baseline, format_bytes

__all__ = ["refusal"]

QUICK = 5000
"""cNodes up to which `dtr` is asked what it reaches."""


def refusal(
    result: Infeasible, name: str, program: Program, budget: Budget | None, baseline: Baseline
) -> Diagnostic:
    """FB0466 with the least budget for which a plan was found, by this planner or by `dtr`,
    a proven lower bound on it, and what holds the memory."""
    of = "" if budget is None or budget.kind == "device" else " of activations"
    size = "memory" if budget is None else f"{format_bytes(budget.bytes)}{of}"
    least, hint = result, None
    if budget is not None and name != "auto" and not name.startswith("dtr"):
        least, hint = _more(result, program, budget)
    notes = [Note(least.why.message, least.why.span), *least.why.notes]
    if least is not result:
        notes.insert(0, Note(result.why.message, result.why.span))
    notes += _figures(least, " ".join(note.message for note in notes))
    if hint is None and least.min_budget is not None:
        option = "--budget" if least.min_budget.kind == "device" else "--activation-budget"
        hint = f"give {option} {least.min_budget.bytes}B or more"
        if least is not result:
            hint += ", and --planner dtr or auto"
    peak = baseline.activation_peak_bytes if of else baseline.peak_bytes
    notes.append(Note(f"with nothing recomputed the step takes {peak} bytes{of}"))
    message = f"planner {name} finds no plan within {size}"
    return Diagnostic("FB0466", message, notes=tuple(notes), hint=hint or result.why.hint)


def _figures(result: Infeasible, said: str) -> Iterator[Note]:
    """The least budget and the bound, where the planner has not said them."""
    if result.min_budget is not None and str(result.min_budget.bytes) not in said:
        yield Note(f"the least that a plan was found for is {result.min_budget.bytes} bytes")
    if str(result.floor_bytes) not in said:
        yield Note(f"no plan of any planner needs less than {result.floor_bytes} bytes")


def _more(result: Infeasible, program: Program, budget: Budget) -> tuple[Infeasible, str | None]:
    """The refusal that knows the least budget, and a hint where `dtr` fits the budget."""
    if len(program.graph.cnodes) > QUICK:
        return result, None
    other = Dtr(rounds=0).plan(program, budget)
    if not isinstance(other, Infeasible):
        return result, "dtr finds a plan within it: give --planner dtr, or auto"
    floor = max(other.floor_bytes, result.floor_bytes)
    ours, theirs = result.min_budget, other.min_budget
    if theirs is None or (ours is not None and ours.bytes <= theirs.bytes):
        return result, None
    return replace(other, floor_bytes=floor), None
