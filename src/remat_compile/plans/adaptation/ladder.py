"""A ladder of plans for one budget: an exact one, and lossy ones that are faster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...ir.diagnostics import Diagnostic, FBError, render
from ...ir.program import Budget
from ...ir.semantics.simulate import simulate
from ..budget import Baseline, BudgetText, resolve_budget
from ..options import Codecs
from ..packed import NO_PLAN

if TYPE_CHECKING:
    from ...backends.torch import PlannedModule
    from ...backends.torch.adaptation import Rung

Step = tuple[Codecs, str]
"""A family of codecs, and the lossy codec in it."""

LADDER: tuple[Step, ...] = (
    ("linear", "int8_random"),
    ("all", "int8"),
    ("linear", "int4"),
    ("all", "int4_outliers"),
    ("all", "int4"),
)
EXACT = "exact"


def check_ladder(
    bound: BudgetText | None, steps: Sequence[Step], tolerance: float, most_steps: int
) -> None:
    """FB0567 for a ladder without a budget that is known beforehand, of steps that are no pairs, or
    with limits that are none."""
    has_budget = bound is not None and bound.form not in ("least", "auto")
    wrong = {
        "a ladder is made for a budget in bytes or a share": not has_budget,
        f"the ladder is {steps!r}": not all(map(_is_step, steps)),
        f"the tolerance is {tolerance!r}": not (_is_number(tolerance) and 0 < tolerance < 1),
        f"most_steps is {most_steps!r}": not (type(most_steps) is int and most_steps >= 1),
    }
    hint = 'write budget="8GiB", ladder=[("all", "int8")], tolerance=0.1, most_steps=4096'
    found = [Diagnostic("FB0567", message, hint=hint) for message, is_so in wrong.items() if is_so]
    if found:
        raise FBError(found, usage=True)


def _is_step(step: object) -> bool:
    return isinstance(step, tuple | list) and [type(part) for part in step] == [str, str]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def make_ladder(
    compile: Callable[..., Any], bound: BudgetText, steps: Sequence[Step]
) -> list[Rung]:
    """The rungs, from exact to most lossy, each faster than all before it as predicted.

    `compile(**options)` gives a planned module. A lossy plan counts gradients that are held
    already (`grads="accumulate"`): an audit holds the exact ones while it runs. All leave room for
    what a repeated step begins from. FB0562 where the exact plan does not fit, FB0545 for a model
    that does not give its loss.
    """
    from ...backends.torch.adaptation import Rung, reserved_bytes
    from ...backends.torch.train import place_of_loss

    def within(budget: Budget | None, **options: Any) -> PlannedModule:
        kind = "budget" if bound.kind == "device" else "activation_budget"
        made: PlannedModule = compile(
            **{kind: bound.text if budget is None else budget.bytes}, **options
        )
        return made

    def exactly(budget: Budget | None = None) -> PlannedModule:
        try:
            return within(budget, codecs="lossless")
        except FBError as error:
            if not NO_PLAN & {d.code for d in error.diagnostics}:
                raise
            why = error.diagnostics[0]
            message = f"the exact plan of the ladder does not fit the budget: {why.message}"
            hint = why.hint or "give a larger budget"
            raise FBError(Diagnostic("FB0562", message, notes=why.notes, hint=hint)) from error

    exact = exactly()
    place_of_loss(exact)
    program = exact.planned_step.program
    budget = resolve_budget(bound, Baseline.of(program))
    trace = simulate(program, exact.planned_step.schedule)
    reserve = reserved_bytes(exact) if budget.kind == "device" else 0
    budget = Budget(budget.bytes - reserve, budget.kind)
    if program.symbols or (reserve and trace.peak_bytes > budget.bytes):
        exact = exactly(budget)
    rungs = [Rung(EXACT, exact)]
    fastest_ns = _time_ns(exact)
    for family, codec in steps:
        try:
            with warnings.catch_warnings():  # they were shown for the exact plan
                warnings.simplefilter("ignore")
                made = within(budget, codecs=family, lossy=codec, grads="accumulate")
        except FBError as error:
            if not NO_PLAN & {d.code for d in error.diagnostics}:
                raise
            continue
        if (time_ns := _time_ns(made)) < fastest_ns:
            rungs.append(Rung(f"{family} {codec}", made))
            fastest_ns = time_ns
    if len(rungs) == 1:
        message = (
            "no lossy plan is faster than the exact one within the budget: all steps are exact"
        )
        told = Diagnostic("FB0563", message, hint="give a smaller budget, or use compile()")
        warnings.warn(render(told, level="warning"), stacklevel=4)
    return rungs


def _time_ns(module: PlannedModule) -> int:
    step = module.planned_step
    return simulate(step.program, step.schedule).time_ns
