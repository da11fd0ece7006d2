"""What becomes of a plan with copies over another link than it was made for."""

from __future__ import annotations

from ..ir.diagnostics import Diagnostic
from ..ir.program import Target
from ..ir.units import format_ns, format_rate
from ..ir.wording import worded
from ..report.traffic import Traffic
from .link import LinkText
from .plan import Plan

__all__ = ["other_link"]


def other_link(plan: Plan, link: LinkText) -> Diagnostic | None:
    """FB0478 where a plan with copies was made for another link than this: both times of the
    step."""
    target = plan.program.target
    here = link.on(target)
    if here == target or not plan.schedule.has_copies:
        return None
    time_ns = Traffic(plan.program, plan.schedule, plan.trace).time_on(here)
    message = (
        f"@{plan.schedule.name} was planned for {_spelled(target)}; there the step takes "
        f"{format_ns(plan.trace.time_ns)}, over {_spelled(here)} it takes {format_ns(time_ns)}"
    )
    hint = worded("plan again with {link}", link=link.text)
    return Diagnostic("FB0478", message, hint=hint)


def _spelled(target: Target) -> str:
    rates = (target.d2h_bytes_per_s, target.h2d_bytes_per_s)
    out, back = ("an unknown rate" if r is None else format_rate(r) for r in rates)
    return f"a link of {out} to the host and {back} back"
