"""A ladder of plans for one budget: an exact one, and lossy ones that are faster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...ir.diagnostics import Diagnostic, FBError, render
from ...ir.semantics.simulate import simulate
from ..budget import Baseline, parse_budget, resolve_budget
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


def check_ladder(steps: Sequence[Step], tolerance: float, most_steps: int, **bounds: Any) -> None:
    """FB0567 for a ladder without a budget that is known beforehand, of steps that are no pairs, or
    with limits that are none."""
    numbers = isinstance(tolerance, int | float) and isinstance(most_steps, int)
    has_limits = numbers and 0 < tolerance < 1 <= most_steps
    wrong = {
        "a ladder needs one budget in bytes or a share": {*bounds.values()} & {"least", "auto"}
        or [*bounds.values()].count(None) != 1,
        f"the ladder is {steps!r}": not isinstance(steps, list | tuple)
        or not all(isinstance(s, tuple | list) and [*map(type, s)] == [str, str] for s in steps),
        f"the limits are {tolerance!r} and {most_steps!r}": not has_limits,
    }
    hint = 'write budget="8GiB", ladder=[("all", "int8")], tolerance=0.1, most_steps=4096'
    found = [Diagnostic("FB0567", message, hint=hint) for message, is_so in wrong.items() if is_so]
    if found:
        raise FBError(found, usage=True)


def make_ladder(
    compile: Callable[..., Any], steps: Sequence[Step], **bounds: str | int | None
) -> list[Rung]:
    """The rungs, from exact to most lossy, each faster than all before it as predicted.

    A lossy plan counts gradients that are held already (`grads="accumulate"`): an audit holds the
    exact ones while it runs. All leave room for what a repeated step begins from. FB0562 where the
    exact plan does not fit, FB0545 for a model that does not give its loss.
    """
    from ...backends.torch.adaptation import Rung, reserved_bytes
    from ...backends.torch.train import place_of_loss

    ((name, amount),) = ((name, amount) for name, amount in bounds.items() if amount is not None)
    bound = parse_budget(amount, "device" if name == "budget" else "activation")

    def planned(amount: str | int, **options: Any) -> PlannedModule | FBError:
        try:
            made: PlannedModule = compile(**{name: amount}, **options)
        except FBError as error:
            if not NO_PLAN & {d.code for d in error.diagnostics}:
                raise
            return error
        return made

    def exactly(amount: str | int) -> PlannedModule:
        made = planned(amount, codecs="lossless")
        if isinstance(made, FBError):
            why = made.diagnostics[0]
            message = f"the exact plan of the ladder does not fit: {why.message}"
            raise FBError(replace(why, code="FB0562", message=message)) from made
        return made

    exact = exactly(amount)
    place_of_loss(exact)
    step = exact.planned_step
    budget = resolve_budget(bound, Baseline.of(step.program))
    left = budget.bytes
    if budget.kind == "device":
        left -= reserved_bytes(exact)
        if step.program.symbols or simulate(step.program, step.schedule).peak_bytes > left:
            exact = exactly(left)
    rungs, fastest_ns = [Rung("exact", exact)], _time_ns(exact)
    for family, codec in steps:
        with warnings.catch_warnings():  # they were shown for the exact plan
            warnings.simplefilter("ignore")
            made = planned(left, codecs=family, lossy=codec, grads="accumulate")
        if not isinstance(made, FBError) and _time_ns(made) < fastest_ns:
            rungs.append(Rung(f"{family} {codec}", made))
            fastest_ns = _time_ns(made)
    if len(rungs) == 1:
        message = "no lossy plan within the budget is faster than the exact one, which runs alone"
        told = Diagnostic("FB0563", message, hint="give a smaller budget, or use compile()")
        warnings.warn(render(told, level="warning"), stacklevel=4)
    return rungs


def _time_ns(module: PlannedModule) -> int:
    step = module.planned_step
    return simulate(step.program, step.schedule).time_ns
