"""The Python API: `plan`, `compile` and `load`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ._budget import Baseline, resolve_budget
from ._files import read_text
from ._options import Errors, PlanOptions, read_options
from ._pipeline import Phases, run_planner
from ._plan import Plan, pick_schedule
from ._sources import ModelOptions, Source, load_source
from .ir.diagnostics import Diagnostic, FBError, render

if TYPE_CHECKING:
    from torch import nn

    from ._torch.lowered import Lowered
    from .costs import Device
    from .ir.program import Program
    from .planners.contract import Planner

__all__ = ["compile", "load", "plan", "plan_program", "plan_source", "read_program"]


def plan(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    budget: str | int | None = None,
    activation_budget: str | int | None = None,
    planner: str | Planner = "auto",
    time_limit_s: float = 60.0,
    costs: Literal["measured", "roofline"] = "measured",
    device: str | None = None,
    grads: Literal["fresh", "accumulate"] | None = None,
    dynamic_shapes: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Plans one training step of `model` at the sample `args` and `kwargs`, and proves it.

    `budget` bounds all device bytes, `activation_budget` what comes on top of parameters,
    buffers, inputs and parameter gradients; bytes, or a text such as `"8GiB"` or `"50%"`.
    `costs="roofline"` plans for the `device` of that name. `grads="accumulate"` counts
    gradients that the caller already holds. `model` may also be the path of an ONNX or
    `.pt2` file, or `file.py:factory`. Nothing of the model is changed. FBError with a
    diagnostic for everything that is refused.
    """
    errors = Errors()
    options = read_options(
        errors,
        budget=budget,
        activation_budget=activation_budget,
        planner=planner,
        time_limit_s=time_limit_s,
        costs=costs,
        device=device,
        grads=grads,
    )
    errors.raise_if_any()
    assert options is not None
    phases = Phases(progress)
    with phases.phase("capture", "capturing the training step"):
        if isinstance(model, str | Path):
            source = load_source(str(model), ModelOptions({}))
        else:
            from .frontends.torch_export import export

            _check_model(model, args)
            source = Source(export(model, args, kwargs, dynamic_shapes=dynamic_shapes))
    return plan_source(source, options, phases)


def compile(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """A drop-in for `model` that trains within the budget; the arguments of `plan`.

    Its parameters are those of `model`. What a user should know about the model comes
    as Python warnings.
    """
    made = plan(model, args, kwargs, **options)
    for diagnostic in made.warnings:
        warnings.warn(render(diagnostic).replace("error[", "[", 1), stacklevel=2)
    return made.bind()


def load(path: str | Path, schedule: str | None = None) -> Plan:
    """The plan in a `.fbir` file: its last schedule, or the one of that name.

    It can be inspected, verified, emitted, and bound to its model with `Plan.bind`.
    """
    program = read_program(path)
    return Plan(program, pick_schedule(program, schedule))


def read_program(path: str | Path) -> Program:
    """The program in a `.fbir` file, or on standard input for `-`."""
    from .ir.parser import parse_program

    return parse_program(read_text(path), str(path))


def plan_source(source: Source, options: PlanOptions, phases: Phases) -> Plan:
    """Lowers, costs, plans and proves an exported model."""
    from .frontends.torch_export import lower

    with ExitStack() as stack:
        with phases.phase("lower", "lowering to a forward-backward graph"):
            lowered = stack.enter_context(lower(source.exported))
        header = replace(lowered.program.header, source=source.name, sha256=source.sha256)
        lowered = lowered.with_program(replace(lowered.program, header=header))
        if options.device is not None:
            program = _roofline(lowered.program, options.device, phases)
        else:
            with phases.phase("costs", "measuring each computation"):
                program = _measured(lowered)
    made = _plan_costed(program, options, phases)
    found = (*source.warnings, *source.exported.warnings, *lowered.warnings)
    return replace(made, warnings=found, _exported=source.exported)


def plan_program(program: Program, options: PlanOptions, phases: Phases) -> Plan:
    """Plans and proves a program, in place of the schedules it holds.

    Its own costs are kept where `options` name none. FB0713 where they are to be
    measured, which needs the model.
    """
    if options.device is not None:
        program = _roofline(program, options.device, phases)
    elif options.costs == "measured":
        message = "costs cannot be measured from a text alone"
        hint = "leave --costs away to keep those in the file, or give the model itself"
        raise FBError(Diagnostic("FB0713", message, hint=hint), usage=True)
    return _plan_costed(replace(program, schedules=(), proven=()), options, phases)


def _plan_costed(program: Program, options: PlanOptions, phases: Phases) -> Plan:
    if options.grads is not None:
        program = replace(program, binding=replace(program.binding, grads=options.grads))
    baseline = Baseline.of(program)
    budget = None if options.budget is None else resolve_budget(options.budget, baseline)
    planned = run_planner(
        program,
        options.planner,
        budget,
        baseline,
        time_limit_s=options.time_limit_s,
        phases=phases,
    )
    bound = planned.lower_bound_ns
    return Plan(
        planned.program,
        planned.schedule,
        budget,
        lower_bound_s=None if bound is None else bound / 1e9,
        phase_s=phases.seconds,
        _is_proven=True,
    )


def _measured(lowered: Lowered) -> Program:
    from .costs import measured

    program: Program = measured(lowered.program, lowered.values())
    return program


def _roofline(program: Program, device: Device, phases: Phases) -> Program:
    from .costs import roofline

    with phases.phase("costs", f"costs by roofline for {device.name}"):
        return roofline(program, device)


def _check_model(model: object, args: object) -> None:
    """FB0706 for what cannot be a model with its arguments."""
    from torch import nn

    if not isinstance(model, nn.Module):
        what = f"a {type(model).__name__} is no model"
        hint = "pass a torch.nn.Module, or the path of a .onnx or .pt2 file"
        raise FBError(Diagnostic("FB0706", what, hint=hint), usage=True)
    if not isinstance(args, tuple | list):
        what = f"the sample arguments are a {type(args).__name__}, not a tuple"
        raise FBError(Diagnostic("FB0706", what, hint="write (x,)"), usage=True)
