"""The Python API: `plan`, `compile`, `sweep` and `load`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from .driver.budget import Baseline, resolve_budget
from .driver.files import read_text
from .driver.model_source import ModelOptions, Source, check_spec, is_program, load_source
from .driver.outputs import files_of_model, files_of_plan
from .driver.plan import Plan, PlanText, pick_schedule
from .driver.recorded import check_same_file, recorded_model
from .driver.request import Errors, Grads, PlanOptions, read_options
from .driver.run_planner import Phases, run_planner
from .driver.sweep import Sweep, run_sweep
from .driver.sweep_options import read_sweep
from .ir.diagnostics import Diagnostic, FBError, render
from .ir.program import Budget, Program

if TYPE_CHECKING:
    from torch import nn

    from ._torch.lowered import Lowered
    from .costs import Device
    from .planners.contract import Planner

__all__ = [
    "as_asked",
    "compile",
    "costed",
    "costed_text",
    "load",
    "plan",
    "plan_program",
    "plan_source",
    "read_program",
    "sweep",
]


def plan(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    budget: str | int | None = None,
    activation_budget: str | int | None = None,
    host_budget: str | int | None = None,
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
    `host_budget` bounds the bytes of copies on the host, for planners that make some.
    `costs="roofline"` plans for the `device` of that name. `grads="accumulate"` counts
    gradients that the caller already holds. `model` may also be the path of an ONNX or
    `.pt2` file, or `file.py:factory`. Nothing of the model is changed. FBError with a
    diagnostic for everything that is refused.
    """
    source, asked, phases = _prepare(
        model,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        progress=progress,
        budget=budget,
        activation_budget=activation_budget,
        host_budget=host_budget,
        planner=planner,
        time_limit_s=time_limit_s,
        costs=costs,
        device=device,
        grads=grads,
    )
    return plan_source(source, asked, phases)


class PlanKeywords(TypedDict, total=False):
    """The keyword arguments of `plan`."""

    budget: str | int | None
    activation_budget: str | int | None
    host_budget: str | int | None
    planner: str | Planner
    time_limit_s: float
    costs: Literal["measured", "roofline"]
    device: str | None
    grads: Literal["fresh", "accumulate"] | None
    dynamic_shapes: Any
    progress: Callable[[str], None] | None


def compile(  # the name users expect, as in torch.compile
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    **keywords: Unpack[PlanKeywords],
) -> nn.Module:
    """A drop-in for `model` that trains within the budget; the arguments of `plan`.

    Its parameters are those of `model`. What a user should know about the model comes
    as Python warnings.
    """
    from .backends.torch import build
    from .frontends.torch_export import ensure_trusted

    source, asked, phases = _prepare(model, args, kwargs, **keywords)
    with _planned(source, asked, phases) as (made, lowered):
        phases.say("generating the step")
        compiled = build(lowered.with_program(made.program), made.schedule)
    # Outside of the block, in which PyTorch traces and warnings are silenced.
    with phases.phase("check", "running the graph once against eager"):
        ensure_trusted(lowered)
    for diagnostic in made.warnings:
        warnings.warn(render(diagnostic, level="warning"), stacklevel=2)
    return compiled


def sweep(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    budgets: str | Sequence[str | int] | None = None,
    activation_budgets: str | Sequence[str | int] | None = None,
    planners: str | Sequence[str | Planner] = "auto",
    time_limit_s: float = 60.0,
    costs: Literal["measured", "roofline"] | None = None,
    device: str | None = None,
    grads: Literal["fresh", "accumulate"] | None = None,
    dynamic_shapes: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """The time that each planner needs under each budget: the frontier of time and memory.

    Budgets as in `plan`, or texts such as `"20%..100%:9"` (none given: that, of the
    activations). `model` may also be a `.fbir` file. It is lowered and its costs found
    once; every plan is proven; a planner that fails gives a cell that says so. FBError for
    wrong usage.
    """
    errors = Errors()
    options = read_options(
        errors,
        budget=None,
        activation_budget=None,
        planner="auto",
        time_limit_s=time_limit_s,
        costs=costs,
        device=device,
        grads=grads,
    )
    # After the options, which have a planner's text of their own.
    asked = read_sweep(errors, budgets, activation_budgets, planners)
    errors.collect(lambda: _check_model(model, args))
    errors.raise_if_any()
    assert options is not None
    phases = Phases(progress)
    if isinstance(model, str | Path) and is_program(str(model)):
        text = read_program(model)
        reads = files_of_plan(model, text.header)
        program = costed_text(text, options, phases)
    else:
        source = _source(model, args, kwargs, dynamic_shapes, phases)
        with costed(source, options.device, phases) as (program, _):
            program = as_asked(program, options)
        reads = source.reads
    found = run_sweep(program, *asked, time_limit_s=time_limit_s, progress=progress)
    return replace(found, _reads=reads)


def load(
    path: str | Path,
    schedule: str | None = None,
    *,
    model: str | Path | None = None,
    trust_source: bool = False,
) -> Plan:
    """The plan in a `.fbir` file: its last schedule, or the one of that name.

    It can be inspected, verified, emitted, and bound to its model with `Plan.bind`. Nothing
    that the file names is loaded, unless `trust_source` says that the model beside it may be;
    `model` names it instead (a path, or `file.py:factory`). Then `bind()` needs no arguments.
    FB0709, FB0715, FB0717 where that cannot be done.
    """
    program, text = read_program_text(path)
    reads = files_of_plan(path, program.header)
    found = pick_schedule(program, schedule)
    made = Plan(program, found, _reads=reads, _text=PlanText(program.graph, found, text))
    if model is None and not trust_source:
        return made
    if model is None:
        spec = recorded_model(program.header, path, trust_source=True)
    else:
        check_spec(spec := str(model), ModelOptions())
        check_same_file(program.header, spec)
    reads = (*reads, *files_of_model(spec))
    return replace(made, _exported=load_source(spec, ModelOptions()).exported, _reads=reads)


def read_program(path: str | Path) -> Program:
    """The program in a `.fbir` file, or on standard input for `-`."""
    return read_program_text(path)[0]


def read_program_text(path: str | Path) -> tuple[Program, str]:
    """The same with its text, which the independent checker reads for itself."""
    from .ir.text.parser import parse_program

    text = read_text(path)
    return parse_program(text, str(path)), text


def plan_source(source: Source, options: PlanOptions, phases: Phases) -> Plan:
    """Lowers, costs, plans and proves an exported model.

    With measured costs the graph is also run once against eager (FB0512). A plan made
    for another device is checked when it is bound to the model.
    """
    from .frontends.torch_export import ensure_trusted

    with _planned(source, options, phases) as (made, lowered):
        pass
    if options.device is None:
        with phases.phase("check", "running the graph once against eager"):
            ensure_trusted(lowered)
    return made


@contextmanager
def _planned(
    source: Source, options: PlanOptions, phases: Phases
) -> Iterator[tuple[Plan, Lowered]]:
    """The plan and, inside the block, the lowered model that it was made from."""
    with costed(source, options.device, phases) as (program, lowered):
        made = _plan_costed(program, options, phases)
        found = (
            *source.warnings,
            *source.exported.warnings,
            *lowered.warnings,
            *made.warnings,
        )
        made = replace(made, warnings=found, _exported=source.exported, _reads=source.reads)
        yield made, lowered


@contextmanager
def costed(
    source: Source, device: Device | None, phases: Phases
) -> Iterator[tuple[Program, Lowered]]:
    """The program with its costs and, inside the block, the lowered model."""
    from .frontends.torch_export import lower

    with ExitStack() as stack:
        with phases.phase("lower", "lowering to a forward-backward graph"):
            lowered = stack.enter_context(lower(source.exported))
        header = replace(lowered.program.header, source=source.name, sha256=source.sha256)
        lowered = lowered.with_program(replace(lowered.program, header=header))
        if device is not None:
            # Nothing is run, so no replay form is compared: the verdict lists them.
            header = replace(lowered.program.header, replays="")
            lowered = lowered.with_program(replace(lowered.program, header=header))
            program = _roofline(lowered.program, device, phases)
        else:
            with phases.phase("costs", "measuring each computation"):
                program = _measured(lowered)
        yield program, lowered


def plan_program(program: Program, options: PlanOptions, phases: Phases) -> Plan:
    """Plans and proves a program, in place of the schedules it holds.

    Its own costs are kept where `options` name none. FB0713 where they are to be
    measured, which needs the model.
    """
    return _plan_costed(costed_text(program, options, phases), options, phases)


def costed_text(program: Program, options: PlanOptions, phases: Phases) -> Program:
    """The program of a text without its schedules, with the costs that `options` ask for."""
    if options.device is not None:
        program = _roofline(program, options.device, phases)
    elif options.costs == "measured":
        message = "costs cannot be measured from a text alone"
        hint = "leave --costs away to keep those in the file, or give the model itself"
        raise FBError(Diagnostic("FB0713", message, hint=hint), usage=True)
    return as_asked(replace(program, schedules=(), proven=()), options)


def as_asked(program: Program, options: PlanOptions) -> Program:
    """The program with `grads` and the host memory as the options ask, where they do."""
    if options.grads is not None:
        program = replace(program, binding=replace(program.binding, grads=options.grads))
    if options.host_bytes is not None:
        program = replace(program, target=replace(program.target, host_bytes=options.host_bytes))
    return program


def _plan_costed(program: Program, options: PlanOptions, phases: Phases) -> Plan:
    program = as_asked(program, options)
    baseline = Baseline.of(program)
    budget = _device_budget(program, baseline)
    if options.budget is not None:
        budget = resolve_budget(options.budget, baseline)
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
        warnings=planned.warnings,
        lower_bound_s=None if bound is None else bound / 1e9,
        phase_s=phases.seconds,
        _is_proven=True,
    )


def _device_budget(program: Program, baseline: Baseline) -> Budget | None:
    """The memory of the target, where the step without recomputation does not fit into it."""
    memory = program.target.memory_bytes
    return Budget(memory) if memory is not None and baseline.peak_bytes > memory else None


def _measured(lowered: Lowered) -> Program:
    from .costs import measured

    program: Program = measured(lowered.program, lowered.values())
    return program


def _roofline(program: Program, device: Device, phases: Phases) -> Program:
    from .costs import roofline

    with phases.phase("costs", f"costs by roofline for {device.name}"):
        return roofline(program, device)


def _prepare(
    model: nn.Module | str | Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    *,
    dynamic_shapes: Any = None,
    progress: Callable[[str], None] | None = None,
    budget: str | int | None = None,
    activation_budget: str | int | None = None,
    host_budget: str | int | None = None,
    planner: str | Planner = "auto",
    time_limit_s: float = 60.0,
    costs: str = "measured",
    device: str | None = None,
    grads: Grads | None = None,
) -> tuple[Source, PlanOptions, Phases]:
    """Checks everything that was asked, then exports the model."""
    errors = Errors()
    asked = read_options(
        errors,
        budget=budget,
        activation_budget=activation_budget,
        host_budget=host_budget,
        planner=planner,
        time_limit_s=time_limit_s,
        costs=costs,
        device=device,
        grads=grads,
    )
    errors.collect(lambda: _check_model(model, args))
    errors.raise_if_any()
    assert asked is not None
    phases = Phases(progress)
    return _source(model, args, kwargs, dynamic_shapes, phases), asked, phases


def _source(
    model: nn.Module | str | Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    dynamic_shapes: Any,
    phases: Phases,
) -> Source:
    with phases.phase("capture", "capturing the training step"):
        if isinstance(model, str | Path):
            source = load_source(str(model), ModelOptions())
            return replace(source, reads=files_of_model(str(model)))
        from .frontends.torch_export import export

        return Source(export(model, tuple(args), kwargs, dynamic_shapes=dynamic_shapes))


def _check_model(model: object, args: object) -> None:
    """FB0706 for what cannot be a model with its arguments."""
    if isinstance(model, str | Path):
        return
    from torch import nn

    if not isinstance(model, nn.Module):
        what = f"a {type(model).__name__} is no model"
        hint = "pass a torch.nn.Module, or the path of a .onnx or .pt2 file"
        raise FBError(Diagnostic("FB0706", what, hint=hint), usage=True)
    if not isinstance(args, tuple | list):
        what = f"the sample arguments are a {type(args).__name__}, not a tuple"
        raise FBError(Diagnostic("FB0706", what, hint="write (x,)"), usage=True)
