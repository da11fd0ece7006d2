"""`auto` as a budget: what a device has free, less a reserve, and what was chosen within it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...costs.device import library_bytes
from ...ir.analysis.optimizer_states import USUAL, assumed_optimizer
from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.graph import CALLER_KINDS
from ...ir.program import Target
from ...ir.rewrites.updates import has_updates
from ...ir.semantics.sizes import Sizes
from ...ir.wording import worded
from ...report.fit import assumed_bytes
from ..budget import AUTO, format_bytes
from ..fusion.kernels import has_regions
from .room import in_bytes

if TYPE_CHECKING:
    from ...ir.program import Program
    from ..plan import Plan
    from ..request import PlanRequest

RESERVE = 0.03
"""Share of a device that is left free. PyTorch's allocator leaves gaps: "reserved by PyTorch but
unallocated" is 0 to 3 % in the reports that the device files name."""


@dataclass(frozen=True, slots=True)
class AutoBudget:
    """The bytes of the device `name`, and how they were found."""

    bytes: int
    name: str
    why: str

    def told(self, plan: Plan) -> Diagnostic:
        """FB0970: five lines on the budget and on what was chosen within it."""
        lines = (self.why, _recomputed(plan), _moved(plan), _fused(plan), self._peak(plan))
        message = f'budget "{AUTO}" is {format_bytes(self.bytes)} on {self.name}'
        return Diagnostic("FB0970", message, notes=tuple(map(Note, lines)))

    def _peak(self, plan: Plan) -> str:
        left = format_bytes(max(0, self.bytes - plan.peak_bytes))
        return f"peak: {format_bytes(plan.peak_bytes)} by {plan.planner}; {left} of the budget left"


def with_auto_budget(
    request: PlanRequest, program: Program, *, steps: bool
) -> tuple[PlanRequest, AutoBudget | None]:
    """The request with the bytes of `auto` in place of it. `steps`: an optimizer is in the plan.
    FB0969 where the device cannot tell what it has free."""
    if request.budget is None or request.budget.form != AUTO:
        return request, None
    target = program.target if request.device is None else request.device.target
    size = Sizes.of(replace(program, target=target)).anode
    if target.memory_bytes is not None:
        name, why, free = _of_target(target)
        total = target.memory_bytes
    else:
        held = sum(size[a.name] for a in program.graph.anodes if a.kind in CALLER_KINDS)
        name = program.header.device
        why, free, total = _of_device(name, held)
    reserve = int(RESERVE * total)
    why += f", less {format_bytes(reserve)} ({RESERVE:.0%}) for gaps of the allocator"
    states = 0
    if not steps and not has_updates(program):
        states, _ = assumed_bytes(program, assumed_optimizer(USUAL))
        why += f" and {format_bytes(states)} for states of {USUAL}, as no optimizer is planned"
    budget = AutoBudget(max(1, free - reserve - states), name, why)
    return replace(request, budget=in_bytes(budget.bytes)), budget


def _of_target(target: Target) -> tuple[str, str, int]:
    assert target.memory_bytes is not None
    free = target.memory_bytes - (library_bytes(target.name) or 0)
    return target.name, f"budget: {format_bytes(free)} of an empty {target.name}", free


def _of_device(name: str, held: int) -> tuple[str, int, int]:
    """Bytes free on a device at hand beside the `held` ones, which are there and planned too."""
    import torch

    from ...device.devices import counts_bytes
    from ...device.memory import free_memory

    device = torch.device(name)
    if not counts_bytes(device):
        message = f'budget "{AUTO}" asks a device what it has free, and the model is on the {name}'
        hint = worded("write {budget}, or name the {device}", budget="8GiB", device="h100-80gb")
        raise FBError(Diagnostic("FB0969", message, hint=hint), usage=True)
    free, total = free_memory(device)
    why = f"budget: {format_bytes(free)} free on {name} and {format_bytes(held)} of this model"
    return why, free + held, total


def _recomputed(plan: Plan) -> str:
    base, trace = plan.baseline, plan.trace
    if base.peak_bytes <= (plan.budget.bytes if plan.budget else base.peak_bytes):
        return f"recompute nothing: the step takes {format_bytes(base.peak_bytes)} as it is"
    again = sum(trace.executions.values()) - len(trace.executions)
    more = f", {100 * (trace.time_ns / base.time_ns - 1):.1f} % more time" if base.time_ns else ""
    return (
        f"recompute {again} of {len(trace.executions)} computations{more}: with nothing recomputed "
        f"the step takes {format_bytes(base.peak_bytes)}"
    )


def _moved(plan: Plan) -> str:
    trace = plan.trace
    if trace.copies:
        return f"offload {format_bytes(trace.host_peak_bytes)}: faster than to recompute them"
    if not plan.program.target.has_link:
        return "offload nothing: no link to the host is known (link= gives one)"
    return "offload nothing: it is not needed, or slower than to recompute"


def _fused(plan: Plan) -> str:
    if has_regions(plan.program):
        return "fuse what was measured faster: bits may differ by rounding"
    return 'fuse nothing: kernels of Inductor may round differently (fuse="auto" tries them)'
