"""A plan with copies over another link than it was made for."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic
from ...ir.program import Target
from ...ir.units import format_ns, format_rate
from ...ir.wording import worded
from ...report.charts.traffic import Traffic
from ..plan import Plan
from .link import LinkText

if TYPE_CHECKING:
    import torch

_NOTICED = Fraction(1, 20)
"""Least change of the step's time that is told: measured links are never the same twice."""


def other_link(plan: Plan, link: LinkText) -> Diagnostic | None:
    """FB0478 where a plan with copies was made for another link than this: both times of the
    step."""
    here = link.on(plan.program.target)
    if here == plan.program.target or not plan.schedule.has_copies:
        return None
    hint = worded("plan again with {link}", link=link.text)
    return _said(plan, here, _time_ns(plan, here), hint)


def link_of_device(plan: Plan, device: torch.device) -> Diagnostic | None:
    """FB0478 for the link of an accelerator, which is measured (some tenths of a second), where it
    changes the time of the step by a twentieth."""
    if device.type == "cpu" or not plan.schedule.has_copies:
        return None
    from ...costs.measured_link import with_measured_link

    here = with_measured_link(plan.program.target, device)
    time_ns, planned_ns = _time_ns(plan, here), plan.trace.time_ns
    if abs(time_ns - planned_ns) <= planned_ns * _NOTICED:
        return None
    hint = worded("plan again on this machine, with {costs}", costs="measured")
    return _said(plan, here, time_ns, hint)


def _time_ns(plan: Plan, here: Target) -> int:
    return Traffic(plan.program, plan.schedule, plan.trace).time_on(here)


def _said(plan: Plan, here: Target, time_ns: int, hint: str) -> Diagnostic:
    planned, there = format_ns(plan.trace.time_ns), format_ns(time_ns)
    message = (
        f"@{plan.schedule.name} was planned for {_spelled(plan.program.target)}; there the step "
        f"takes {planned}, over {_spelled(here)} it takes {there}"
    )
    return Diagnostic("FB0478", message, hint=hint)


def _spelled(target: Target) -> str:
    rates = (target.d2h_bytes_per_s, target.h2d_bytes_per_s)
    out, back = ("an unknown rate" if r is None else format_rate(r) for r in rates)
    issue = target.copy_issue_ns
    beside = f" (each copy takes {format_ns(issue)} to issue)" if issue else ""
    return f"a link of {out} to the host and {back} back{beside}"
