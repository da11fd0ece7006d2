"""A plan of a model for a device."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from ...ir.diagnostics import FBError
from ..budget import BudgetText
from ..files.look import read_program
from ..make import costed_program, plan_costed
from ..packed import NO_PLAN
from ..source import is_program, load_source
from .room import in_bytes, refuse_unmeasurable, room_for_step

if TYPE_CHECKING:
    from ...ir.program import Program
    from ..plan import Plan
    from ..request import PlanRequest
    from ..run_planner import Phases
    from ..source import ModelOptions

LEAST_S = 10.0
"""Seconds for the plan of the fewest bytes, where none fits."""


def program_of(model: str, request: PlanRequest, options: ModelOptions, phases: Phases) -> Program:
    """MODEL with its costs and, where an optimizer came with it, its updates."""
    if is_program(model):
        return costed_program(read_program(model), request, phases)
    at = "".join(f" at {name} = {size}" for name, size in options.dims.items())
    with phases.phase("capture", f"capturing {model}{at}"):
        source = load_source(model, options)
    if request.device is None and request.budget is None:
        refuse_unmeasurable(source.exported.device)
    return costed_program(source, request, phases)


def plan_to_fit(
    program: Program, request: PlanRequest, optimizer: str | None, phases: Phases
) -> Plan:
    """A plan within the device; that of the fewest bytes found where none is."""
    room = room_for_step(program, optimizer)
    if room > 0:
        try:
            return plan_costed(program, replace(request, budget=in_bytes(room)), phases)
        except FBError as error:
            if not NO_PLAN & {d.code for d in error.diagnostics}:
                raise
    least = replace(request, budget=BudgetText("least", "device", "least", Fraction(0)))
    unbounded = replace(program, target=replace(program.target, memory_bytes=None))
    limit_s = min(LEAST_S, request.time_limit_s)
    made = plan_costed(unbounded, replace(least, time_limit_s=limit_s), phases)
    return replace(made, program=replace(made.program, target=program.target))
