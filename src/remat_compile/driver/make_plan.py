"""From a model, or from a program as text, to a plan: costs, planner, proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Budget, Program
from ..ir.wording import worded
from .budget import Baseline, resolve_budget
from .files import read_text
from .fuse import fused_plan, refuse_without_model
from .model_source import Source
from .outputs import files_of_plan
from .plan import Plan, PlanText, pick_schedule
from .request import PlanRequest
from .run_planner import Phases, run_planner

if TYPE_CHECKING:
    from .._torch.lowered import Lowered
    from ..costs import Device


def read_program(path: str | Path) -> Program:
    """The program in a `.fbir` file, or on standard input for `-`."""
    return read_program_text(path)[0]


def read_program_text(path: str | Path) -> tuple[Program, str]:
    """The same with its text, which the independent checker reads for itself."""
    from ..ir.text.parser import parse_program

    text = read_text(path)
    return parse_program(text, str(path)), text


def plan_in_text(
    program: Program, text: str, path: str | Path, schedule: str | None = None
) -> Plan:
    """The last schedule of the text, or the one of that name (FB0708), as a plan."""
    chosen = pick_schedule(program, schedule)
    reads = files_of_plan(path, program.header)
    return Plan(program, chosen, _reads=reads, _text=PlanText(program.graph, chosen, text))


def plan_source(source: Source, request: PlanRequest, phases: Phases) -> Plan:
    """Lowers, costs, plans and proves an exported model.

    With measured costs the graph is also run once against eager (FB0512). A plan made
    for another device is checked when it is bound to the model.
    """
    from ..frontends.torch_export import ensure_trusted

    with planned_source(source, request, phases) as (plan, lowered):
        pass
    if request.device is None:
        with phases.phase("check", "running the graph once against eager"):
            ensure_trusted(lowered)
    return plan


@contextmanager
def planned_source(
    source: Source, request: PlanRequest, phases: Phases
) -> Iterator[tuple[Plan, Lowered]]:
    """The plan and, inside the block, the lowered model that it was made from."""
    with costed(source, request.device, phases) as (program, lowered):
        plan = fused_plan(_plan_costed(program, request, phases), lowered, request, phases)
        warnings = (
            *source.warnings,
            *source.exported.warnings,
            *lowered.warnings,
            *plan.warnings,
        )
        plan = replace(plan, warnings=warnings, _exported=source.exported, _reads=source.reads)
        yield plan, lowered


def plan_program(program: Program, request: PlanRequest, phases: Phases) -> Plan:
    """Plans and proves a program, in place of the schedules it holds. See `costed_program`."""
    refuse_without_model(request)
    return _plan_costed(costed_program(program, request, phases), request, phases)


@contextmanager
def costed(
    source: Source, device: Device | None, phases: Phases
) -> Iterator[tuple[Program, Lowered]]:
    """The program with its costs and, inside the block, the lowered model."""
    from ..frontends.torch_export import lower

    with ExitStack() as stack:
        with phases.phase("lower", "lowering to a forward-backward graph"):
            lowered = stack.enter_context(lower(source.exported))
        header = replace(lowered.program.header, source=source.name, sha256=source.sha256)
        if device is not None:  # nothing is run, so no replay form is compared: verdicts list them
            header = replace(header, replays="")
        lowered = lowered.with_program(replace(lowered.program, header=header))
        if device is not None:
            program = _roofline(lowered.program, device, phases)
        else:
            with phases.phase("costs", "measuring each computation"):
                program = _measured(lowered)
        yield program, lowered


def costed_program(model: Program | Source, request: PlanRequest, phases: Phases) -> Program:
    """The program with the costs, `grads` and host memory that were asked for, to be planned.

    A text loses its schedules and keeps its own costs where none were asked for. FB0713 where
    they are to be measured, which needs the model.
    """
    if isinstance(model, Source):
        with costed(model, request.device, phases) as (program, _):
            return _as_requested(program, request)
    if request.device is not None:
        model = _roofline(model, request.device, phases)
    elif request.costs == "measured":
        message = "costs cannot be measured from a text alone"
        hint = worded("leave {costs} away to keep those in the file, or give the model itself")
        raise FBError(Diagnostic("FB0713", message, hint=hint), usage=True)
    return _as_requested(replace(model, schedules=(), proven=()), request)


def _as_requested(program: Program, request: PlanRequest) -> Program:
    """The program with `grads` and the host memory as they were asked for, where they were."""
    if request.grads is not None:
        program = replace(program, binding=replace(program.binding, grads=request.grads))
    if request.host_bytes is not None:
        program = replace(program, target=replace(program.target, host_bytes=request.host_bytes))
    if request.link is not None:
        program = replace(program, target=request.link.on(program.target))
    return program


def _plan_costed(program: Program, request: PlanRequest, phases: Phases) -> Plan:
    program = _as_requested(program, request)
    baseline = Baseline.of(program)
    budget = _target_memory(program, baseline)
    if request.budget is not None:
        budget = resolve_budget(request.budget, baseline)
    planned = run_planner(
        program,
        request.planner,
        budget,
        baseline,
        time_limit_s=request.time_limit_s,
        phases=phases,
    )
    bound_ns = planned.lower_bound_ns
    return Plan(
        planned.program,
        planned.schedule,
        budget,
        warnings=planned.warnings,
        lower_bound_s=None if bound_ns is None else bound_ns / 1e9,
        phase_s=phases.seconds,
        _is_proven=True,
    )


def _target_memory(program: Program, baseline: Baseline) -> Budget | None:
    """The memory of the target, where the step without recomputation does not fit into it."""
    memory = program.target.memory_bytes
    return Budget(memory) if memory is not None and baseline.peak_bytes > memory else None


def _measured(lowered: Lowered) -> Program:
    from ..costs import measured

    program: Program = measured(lowered.program, lowered.values())
    return program


def _roofline(program: Program, device: Device, phases: Phases) -> Program:
    from ..costs import roofline

    with phases.phase("costs", f"costs by roofline for {device.name}"):
        return roofline(program, device)
