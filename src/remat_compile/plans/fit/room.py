"""Bytes of a device that are left for a step."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from ...costs.device import library_bytes
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.semantics.simulate import simulate
from ...ir.semantics.sizes import Sizes
from ...ir.wording import worded
from ...report.fit import assumed_bytes, at_the_end, chosen_optimizer
from ...report.subject import store_all
from ..budget import BudgetText, format_bytes

if TYPE_CHECKING:
    import torch

    from ...ir.program import Program
    from ..request import PlanRequest


def in_bytes(count: int) -> BudgetText:
    """Return a budget of so many bytes of the device."""
    return BudgetText(f"{count}B", "device", "bytes", Fraction(count))


def refuse_without_device(program: Program) -> int:
    """The memory of the program's target. FB0971 where it has none, FB0972 where it holds less than
    the parameters."""
    memory, target = program.target.memory_bytes, program.target
    if memory is None:
        raise _no_device(target.name)
    sizes = Sizes.of(program).anode
    held = sum(sizes[a.name] for a in program.graph.anodes if a.kind == "param")
    if held > memory:
        message = (
            f"{target.name} has {format_bytes(memory)}, and the parameters alone take "
            f"{format_bytes(held)}"
        )
        hint = worded(
            "name a larger {device}, or let the factory return its optimizer too and plan with "
            "{planner}, which keeps parameters on the host",
            planner="offmate",
        )
        raise FBError(Diagnostic("FB0972", message, hint=hint))
    return memory


def room_for_step(program: Program, optimizer: str | None = None) -> int:
    """Bytes of the target that the step may take: less what libraries hold, and the states of the
    optimizer that is assumed where none steps in the program. At most 0 where the update of that
    one does not fit. FB0968, FB0971 and FB0972."""
    memory = refuse_without_device(program) - (library_bytes(program.target.name) or 0)
    if (chosen := chosen_optimizer(program, optimizer)) is None:
        return memory
    states, update = assumed_bytes(program, chosen)
    end = sum(at_the_end(program, simulate(program, store_all(program))).values())
    return memory - states if end + states + update <= memory else 0


def room_of(request: PlanRequest) -> Callable[[Program], int]:
    """The bytes for a step at each size: the budget that was given, or what the device has. FB0973
    for a budget that is another one at each size."""
    budget = request.budget
    if budget is None or budget.form == "auto":
        return room_for_step
    if budget.kind != "device" or budget.form != "bytes":
        message = f'the budget "{budget.text}" is another one at each size'
        hint = worded("write {budget}", budget="8GiB")
        raise FBError(Diagnostic("FB0973", message, hint=hint), usage=True)
    size = int(budget.amount)
    return lambda program: size


def refuse_unmeasurable(device: torch.device) -> None:
    """FB0971 for the device of a model that counts no bytes, before anything is measured on it."""
    if device.type in ("cpu", "meta", "mps"):
        raise _no_device(str(device))


def _no_device(name: str) -> FBError:
    message = f'no device to fit into: nothing says how much memory "{name}" has'
    hint = worded("name one: {device}; remat-compile devices lists them", device="h100-80gb")
    return FBError(Diagnostic("FB0971", message, hint=hint), usage=True)
