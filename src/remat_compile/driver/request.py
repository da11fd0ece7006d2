"""What a user asks of a plan, checked as a whole before any work is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from ..costs import device_names, load_device
from ..ir.diagnostics import Diagnostic, FBError
from ..planners.registry import parse_planner
from .budget import BudgetText, parse_budget
from .files import keep_text

if TYPE_CHECKING:
    from ..costs import Device
    from ..planners.contract import Planner

__all__ = ["Costs", "Errors", "Grads", "PlanOptions", "check_time_limit", "read_options"]

MOST_SECONDS = 1e9
"""The longest time limit, 32 years; a thread cannot wait for ten times as long."""

Costs = Literal["measured", "roofline"]
Grads = Literal["fresh", "accumulate"]
T = TypeVar("T")


class Errors:
    """Collects refusals, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def collect(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except FBError as error:
            self.found += error.diagnostics
            return None

    def add(self, code: str, message: str, hint: str | None = None) -> None:
        self.found.append(Diagnostic(code, message, hint=hint))

    def raise_if_any(self) -> None:
        """Raises what was found, as wrong usage."""
        if self.found:
            raise FBError(self.found, usage=True)


@dataclass(frozen=True)
class PlanOptions:
    """`costs` and `grads` are None where those of the text at hand are kept (for a model:
    measured costs, fresh gradients); `device` is that of roofline costs; `host_bytes` takes
    the place of the target's."""

    planner: Planner
    budget: BudgetText | None = None
    host_bytes: int | None = None
    time_limit_s: float = 60.0
    costs: Costs | None = None
    device: Device | None = None
    grads: Grads | None = None


def read_options(
    errors: Errors,
    *,
    budget: str | int | None,
    activation_budget: str | int | None,
    host_budget: str | int | None = None,
    planner: str | Planner,
    time_limit_s: float,
    costs: str | None,
    device: str | None,
    grads: Grads | None,
) -> PlanOptions | None:
    """The options, or None after adding to `errors`: FB0450 to FB0452 for budgets, FB0707
    for the rest, and those of the planner and device registries."""
    both = budget is not None and activation_budget is not None
    if both:
        errors.add("FB0452", "two budgets were given", "give --budget or --activation-budget")
    bound = None
    if budget is not None:
        bound = errors.collect(lambda: parse_budget(budget))
    if activation_budget is not None:
        bound = errors.collect(lambda: parse_budget(activation_budget, "activation"))
    host = None
    if host_budget is not None:
        host = errors.collect(lambda: parse_budget(host_budget, "host"))
    check_time_limit(errors, time_limit_s)
    if grads not in (None, "fresh", "accumulate"):
        errors.add("FB0707", f'grads is "{grads}"', "write fresh or accumulate")
    chosen = errors.collect(lambda: _read_planner(planner))
    target = None if device is None else errors.collect(lambda: load_device(device))
    source = _read_costs(errors, costs, device)
    if errors.found or chosen is None:
        return None
    return PlanOptions(
        chosen,
        bound,
        None if host is None else int(host.amount),
        time_limit_s,
        source,
        target,
        grads,
    )


def check_time_limit(errors: Errors, time_limit_s: float) -> None:
    """Adds FB0707 for what no clock can wait for."""
    if not time_limit_s >= 0:
        errors.add("FB0707", f"a time limit of {time_limit_s:g} s: it cannot be negative")
    elif time_limit_s > MOST_SECONDS:
        hint = f"give {MOST_SECONDS:g} s at the most"
        errors.add("FB0707", f"a time limit of {time_limit_s:g} s is too long", hint)


def _read_planner(planner: str | Planner) -> Planner:
    if not isinstance(planner, str):
        return planner
    # The file name that the registry's spans carry.
    keep_text("<planner>", planner)
    return parse_planner(planner)


def _read_costs(errors: Errors, costs: str | None, device: str | None) -> Costs | None:
    if costs not in (None, "measured", "roofline"):
        errors.add("FB0707", f'costs are "{costs}"', "write measured or roofline")
    if costs == "measured" and device is not None:
        errors.add(
            "FB0707",
            f"costs are measured on this machine, not on {device}",
            "use --costs roofline with --device",
        )
    if costs == "roofline" and device is None:
        errors.add(
            "FB0707",
            "roofline costs need a device",
            f"--device is one of {', '.join(device_names())}",
        )
    if costs == "measured":
        return "measured"
    return "roofline" if device is not None else None
