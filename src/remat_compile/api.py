"""The Python API: `plan`, `compile`, `compile_in_place`, `adaptive`, `pipeline`, `sweep` and
`load`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from .capture.output_spec import ALL_RESULTS, Loss, Outputs, Wanted
from .ir.diagnostics import Diagnostic, FBError, render
from .plans.adaptation.ladder import LADDER, Step, check_ladder, make_ladder
from .plans.files.look import plan_in_text, read_program, read_program_text
from .plans.files.outputs import files_of_model, files_of_plan
from .plans.files.recorded import model_of_plan, with_sizes
from .plans.make import costed_program, plan_program, plan_source, planned_source, with_caches
from .plans.messages.progress import Progress
from .plans.options import (
    CostKeywords,
    Errors,
    LadderKeywords,
    PlanKeywords,
    SweepKeywords,
    named_keywords,
)
from .plans.packed import without_lossy
from .plans.plan import Plan
from .plans.request import PlanRequest, check_choice, check_fuse, read_request, read_sweep
from .plans.run_planner import Phases
from .plans.source import Source, check_module, check_spec, is_program, load_source
from .plans.sweep.sweep import Sweep, run_sweep

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .backends.torch import PlannedModule
    from .backends.torch.adaptation import AdaptiveStep
    from .planners.contract import Planner
    from .plans.pipeline.step import PipelineStep

OnChange = Literal["error", "eager", "replan"]

__all__ = [
    "adaptive",
    "compile",
    "compile_in_place",
    "load",
    "pipeline",
    "plan",
    "plan_program",
    "read_program",
    "sweep",
]


@named_keywords(PlanKeywords)
def plan(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    loss: Loss = None,
    outputs: Outputs = None,
    optimizer: Optimizer | None = None,
    max_grad_norm: float | None = None,
    dynamic_shapes: Any = None,
    progress: Progress = None,
    **options: Unpack[PlanKeywords],
) -> Plan:
    """Plans one training step of `model` at the sample `args` and `kwargs`, and proves it. With an
    `optimizer` of `torch.optim` its step is part of it; `max_grad_norm` as in `compile`.

    `model` may also be the path of an ONNX or `.pt2` file, `file.py:factory`, or a `.fbir`
    file to plan again. `loss` says what is differentiated where that is not the `loss` of what
    the model returns: a path (`"losses.total"`, `1` in a tuple) or a function of it; `outputs` are
    paths of what the step returns. `dynamic_shapes` is that of `torch.export.export`; `progress`
    is called with a line of text at each stage; left out, slow work is shown in a terminal and in
    notebooks, and False shows nothing. Nothing of the model is changed. FBError with a
    diagnostic for everything that is refused.
    """
    request = _request(model, args, options, Wanted(loss, outputs))
    phases = Phases(progress)
    if (path := _text_path(model)) is not None:
        program = read_program(path)
        reads = files_of_plan(path, program.header)
        return replace(plan_program(program, request, phases), _reads=reads)
    _check_training(request, optimizer, max_grad_norm)
    source = _source(model, args, kwargs, Wanted(loss, outputs), dynamic_shapes, phases)
    return plan_source(_with_optimizer(source, optimizer, max_grad_norm), request, phases)


@named_keywords(PlanKeywords)
def compile(  # the name users expect, as in torch.compile
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    loss: Loss = None,
    outputs: Outputs = None,
    optimizer: Optimizer | None = None,
    max_grad_norm: float | None = None,
    weights: str | Path | None = None,
    dynamic_shapes: Any = None,
    on_change: OnChange = "error",
    on_new_shape: OnChange | None = None,
    cuda_graph: bool = False,
    progress: Progress = None,
    **options: Unpack[PlanKeywords],
) -> nn.Module:
    """A drop-in for `model` that trains within the budget; the arguments of `plan`.

    With an `optimizer` of `torch.optim` it is the whole step, `step(*args) -> loss`: a parameter is
    updated where the plan says, and its gradient freed (FB0541 to FB0545).

    The model gets the values of a safetensors file or index, `weights`; one on `meta` lies on the
    host then (FB0553, FB0554). Parameters may be on the host where the arguments lie on an
    accelerator, or be sharded over ranks, where all are updated at home (FB0555 to FB0557).

    A call that the plan was not made for (other shapes, another mode of the model, another
    attribute that its forward reads) is refused (`on_change="error"`, FB0910), runs without a plan
    and its bound (`"eager"`, FB0913), or is planned like this one and kept (`"replan"`).
    `on_new_shape` is the old name of `on_change`.
    With `cuda_graph` steps are replayed as CUDA graphs, which keep their memory between steps
    and besides copies of arguments, results and gradients (FB0967 where that cannot be).
    Its parameters are those of `model`. What a user should know about the model comes
    as Python warnings. FB0702 for a `.fbir` file, which holds no parameters, FB0632 for
    `fuse="xla"`.
    """
    if (path := _text_path(model)) is not None:
        message = f"{path} is a program in text form, which holds no parameters"
        hint = "load(path).bind(model, args) runs the plan in it; plan(path) plans it again"
        raise FBError(Diagnostic("FB0702", message, hint=hint), usage=True)
    on_change = on_change if on_new_shape is None else on_new_shape
    check_choice("way with changes", on_change, OnChange)
    request = _request(model, args, options, Wanted(loss, outputs))
    check_fuse(request.fuse, "torch")
    phases = Phases(progress)
    if cuda_graph and not isinstance(model, str | Path):
        from .backends.torch import check_graphs

        tensor = next(chain(model.parameters(), model.buffers()), None)
        if tensor is not None:
            check_graphs(tensor.device, is_dynamic=dynamic_shapes is not None)
    wanted = Wanted(loss, outputs)
    _check_training(request, optimizer, max_grad_norm, on_change, cuda_graph=cuda_graph)
    if weights is not None and not isinstance(model, str | Path):
        from .capture.weights import load_weights

        with phases.phase("weights", f"reading {weights}"):
            load_weights(model, weights)
    source = _source(model, args, kwargs, wanted, dynamic_shapes, phases, guarded=True)
    source = _with_optimizer(source, optimizer, max_grad_norm)
    compiled, diagnostics = _compiled(source, request, phases, cuda_graph=cuda_graph)
    for diagnostic in diagnostics:
        # Past `named_keywords`, to the caller.
        warnings.warn(render(diagnostic, level="warning"), stacklevel=3)
    from .backends.torch import RunEagerly, RunPlannedAgain, TrainingStep
    from .capture.trace.parallel import around_replica

    if source.optimizer is not None:
        return TrainingStep(compiled, source.optimizer.begun())
    if on_change == "eager":
        compiled.planned_step.on_change = RunEagerly()
    elif on_change == "replan":
        chosen: dict[str, Any] = {"loss": loss, "outputs": outputs, **options}
        chosen["progress"] = progress or False  # None here: there was nobody to look, or nothing
        chosen["cuda_graph"] = cuda_graph
        compiled.planned_step.on_change = RunPlannedAgain(partial(compile, **chosen))
    return around_replica(source.exported, compiled)


@named_keywords(PlanKeywords)
def compile_in_place(
    model: nn.Module, *, on_change: OnChange = "replan", **options: Unpack[PlanKeywords]
) -> None:
    """As `nn.Module.compile`: `model(...)` itself trains within the budget from its next call on.

    The first training call is the sample of `compile`, which gets the options. It suits models
    that a library calls: a network in a `LightningModule`, what `accelerate` has prepared
    (`remat_compile.hf.Callback` for `Trainer`). In evaluation and without gradients the model
    runs in eager. FBError for wrong options now, for what cannot be planned at that call.
    """
    from .backends.torch.in_place import plan_at_first_call

    check_choice("way with changes", on_change, OnChange)
    _request(model, (), options, ALL_RESULTS)
    plan_at_first_call(model, lambda *call: compile(*call, on_change=on_change, **options))


@named_keywords(LadderKeywords)
def adaptive(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    ladder: Sequence[Step] = LADDER,
    tolerance: float = 0.1,
    most_steps: int = 4096,
    loss: Loss = None,
    outputs: Outputs = None,
    dynamic_shapes: Any = None,
    group: Any = None,
    progress: Progress = None,
    **options: Unpack[LadderKeywords],
) -> AdaptiveStep:
    """A training step that uses lossy codecs while their gradients are near the exact ones.

    Plans are made and proven for one budget: an exact one, then those of `ladder`, pairs as
    `("all", "int8")` of `codecs` and `lossy`, from least to most lossy, which are faster than all
    before. `step(*args) -> loss` runs forward and backward. Audits, at most `most_steps` apart, run
    it exactly too; a relative error of a gradient above `tolerance` leads back to the exact plan.
    Decisions are the same on all ranks of `group`. FB0545, FB0562, FB0567.
    """
    from .backends.torch.adaptation import AdaptiveStep, Rules
    from .capture.trace.parallel import check_not_spread

    budget, activations = options.pop("budget", None), options.pop("activation_budget", None)
    bounds: dict[str, Any] = {"budget": budget, "activation_budget": activations}
    check_ladder(ladder, tolerance, most_steps, **bounds)
    check_module(model, args)
    check_not_spread(model)
    chosen: dict[str, Any] = {**options, "loss": loss, "outputs": outputs, "progress": progress}
    chosen["dynamic_shapes"] = dynamic_shapes
    rungs = make_ladder(partial(compile, model, args, kwargs, **chosen), ladder, **bounds)
    return AdaptiveStep(rungs, Rules(len(rungs), tolerance, most_steps), group)


def _compiled(
    source: Source, request: PlanRequest, phases: Phases, *, cuda_graph: bool
) -> tuple[PlannedModule, tuple[Diagnostic, ...]]:
    """The step of a model that was captured, and the warnings of its plan."""
    from .backends.torch import build, recorder_for
    from .capture.torch import ensure_trusted
    from .plans.bind import under

    with planned_source(source, request, phases) as (made, lowered):
        phases.say("generating the step")
        recorder = recorder_for(lowered) if cuda_graph else None
        tied, optimizer = under(lowered, made.program), source.optimizer
        if optimizer is not None:
            tied = tied.with_program(made.program, optimizer.origin)
        compiled = build(tied, made.schedule, made._kernels, recorder, optimizer)
    # Outside of the block, in which PyTorch traces and warnings are silenced.
    try:
        with phases.phase("check", "running the graph once against eager"):
            ensure_trusted(without_lossy(lowered))
    except FBError as error:
        return _compiled(with_caches(source, error), request, phases, cuda_graph=cuda_graph)
    return compiled, made.warnings


def _with_optimizer(
    source: Source, optimizer: Optimizer | None, max_grad_norm: float | None
) -> Source:
    """The source of a step with an optimizer."""
    if optimizer is None:
        return source
    from .capture.torch.optimizer import updates_of

    made = updates_of(optimizer, source.exported, max_grad_norm)
    return replace(source, optimizer=made)


def _check_norm(optimizer: Optimizer | None, max_grad_norm: float | None) -> None:
    """FB0546 for a norm without an optimizer, or one that is not positive."""
    if max_grad_norm is not None and (optimizer is None or not max_grad_norm > 0):
        message = f"max_grad_norm={max_grad_norm} clips the gradients of a step with an optimizer"
        hint = "pass optimizer= and a number above 0"
        raise FBError(Diagnostic("FB0546", message, hint=hint), usage=True)


def _check_training(
    request: PlanRequest,
    optimizer: Optimizer | None,
    max_grad_norm: float | None,
    on_change: OnChange = "error",
    *,
    cuda_graph: bool = False,
) -> None:
    """FB0546, before anything is captured, for what a whole training step cannot be combined with,
    and as `_check_norm`."""
    _check_norm(optimizer, max_grad_norm)
    if optimizer is None:
        return
    wrong = {'on_change="error"': on_change != "error", "cuda_graph=False": cuda_graph}
    wrong['fuse="none", "auto" or "inductor"'] = request.fuse == "xla"
    for option, is_wrong in wrong.items():
        if is_wrong:
            message = (
                "a step with an optimizer is planned with the updates in it, and runs as planned"
            )
            raise FBError(Diagnostic("FB0546", message, hint=f"use {option}"), usage=True)


@named_keywords(SweepKeywords)
def sweep(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    budgets: str | Sequence[str | int] | None = None,
    activation_budgets: str | Sequence[str | int] | None = None,
    planners: str | Sequence[str | Planner] = "auto",
    loss: Loss = None,
    outputs: Outputs = None,
    dynamic_shapes: Any = None,
    progress: Progress = None,
    **options: Unpack[SweepKeywords],
) -> Sweep:
    """The time that each planner needs under each budget: the frontier of time and memory.

    Budgets as in `plan`, or texts such as `"20%..100%:9"` (none given: that, of the
    activations). `model` may also be a `.fbir` file. It is lowered and its costs found
    once; every plan is proven; a planner that fails gives a cell that says so. FBError for
    wrong usage.
    """
    errors = Errors()
    request = read_request(errors, **options)
    # After the options, which have a planner's text of their own.
    asked = read_sweep(errors, budgets, activation_budgets, planners)
    errors.collect(lambda: _check_model(model, args, Wanted(loss, outputs)))
    errors.raise_if_any()
    assert request is not None
    phases = Phases(progress)
    if (path := _text_path(model)) is not None:
        text = read_program(path)
        reads = files_of_plan(path, text.header)
        program = costed_program(text, request, phases)
    else:
        source = _source(model, args, kwargs, Wanted(loss, outputs), dynamic_shapes, phases)
        reads = source.reads
        program = costed_program(source, request, phases)
    made = run_sweep(program, *asked, time_limit_s=request.time_limit_s, progress=phases.said)
    return replace(made, _reads=reads)


@named_keywords(CostKeywords)
def pipeline(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    microbatches: int,
    budget: str | int | None = None,
    link: str | None = None,
    planner: str = "one-f-one-b",
    loss: Loss = None,
    optimizer: Optimizer | None = None,
    max_grad_norm: float | None = None,
    group: Any = None,
    replicas: Any = None,
    timeout_s: float | None = None,
    progress: Progress = None,
    **options: Unpack[CostKeywords],
) -> PipelineStep:
    """The training step of `model` over the ranks of a `torch.distributed` process group.

    Called on every rank (under `torchrun`) with the same model and batch; every tensor of `args`
    has the batch as dimension 0, which `microbatches` divides. `budget` bounds the bytes of each
    rank, `link` is the bandwidth between two. Rank 0 plans; each rank checks all rows and runs its
    own. The model returns its loss, or `loss` is the path to it. `timeout_s` bounds each wait (the
    larger of 30 s and 20 times the predicted step). `step(*args)` then adds gradients to `.grad`,
    or with an `optimizer` of the whole model's parameters updates those of this rank;
    `max_grad_norm` as in `compile`. `replicas` is the group of the ranks that run the same stages
    on other data, over which gradients are averaged.
    FB0541 to FB0543, FB0546, FB0742, FB1022 and FB1030 to FB1034 for what cannot be run.
    """
    from .plans.pipeline.make import read_pipeline_request
    from .plans.pipeline.step import build_step

    errors = Errors()
    costs = options.get("costs") or (None if options.get("device") else "measured")
    planning = read_request(errors, costs=costs, device=options.get("device"))
    errors.collect(lambda: _check_model(model, args, Wanted(loss)))
    errors.collect(lambda: _check_norm(optimizer, max_grad_norm))
    request = read_pipeline_request(
        errors, planner, microbatches, budget, link, options.get("time_limit_s", 60.0)
    )
    errors.raise_if_any()
    assert planning is not None
    assert request is not None
    return build_step(
        model,
        tuple(args),
        kwargs or {},
        request,
        planning,
        Phases(progress),
        wanted=Wanted(loss),
        group=group,
        timeout_s=timeout_s,
        optimizer=optimizer,
        max_grad_norm=max_grad_norm,
        replicas=replicas,
    )


@named_keywords()
def load(
    path: str | Path,
    schedule: str | None = None,
    *,
    model: str | Path | None = None,
    trust_source: bool = False,
    allow_lossy: bool = False,
) -> Plan:
    """The plan in a `.fbir` file: its last schedule, or the one of that name.

    It can be inspected, verified, emitted, and bound to its model with `Plan.bind`. Nothing
    that the file names is loaded, unless `trust_source` says that the model beside it may be;
    `model` names it instead (a path, or `file.py:factory`). Then `bind()` needs no arguments.
    FB0709, FB0715, FB0717 where that cannot be done. `allow_lossy` allows a plan whose gradients
    are approximate (else FB0878 where it is proven).
    """
    read = replace(plan_in_text(*read_program_text(path), path, schedule), _allow_lossy=allow_lossy)
    if model is None and not trust_source:
        return read
    named = None if model is None else str(model)
    spec = model_of_plan(read.program.header, path, named, trust_source=True)
    reads = (*read._reads, *files_of_model(spec))
    return replace(
        read, _exported=load_source(spec, with_sizes(read.program)).exported, _reads=reads
    )


def _request(model: object, args: object, options: PlanKeywords, wanted: Wanted) -> PlanRequest:
    """Everything that was asked, checked as a whole."""
    errors = Errors()
    if _text_path(model) is None and not options.get("device"):
        options = {"costs": "measured", **options}
    request = read_request(errors, **options)
    errors.collect(lambda: _check_model(model, args, wanted))
    errors.raise_if_any()
    assert request is not None
    return request


def _check_model(model: object, args: object, wanted: Wanted) -> None:
    if isinstance(model, str | Path):
        if wanted != ALL_RESULTS:
            message = "loss= and outputs= choose among what a module returns, and a file was given"
            raise FBError(Diagnostic("FB0517", message, hint="pass the module itself"), usage=True)
        check_spec(str(model))
    else:
        check_module(model, args)


def _text_path(model: object) -> str | None:
    """The path of a program in text form, where the model is one."""
    return str(model) if isinstance(model, str | Path) and is_program(str(model)) else None


def _source(
    model: nn.Module | str | Path,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    wanted: Wanted,
    dynamic_shapes: Any,
    phases: Phases,
    *,
    guarded: bool = False,
) -> Source:
    with phases.phase("capture", "capturing the training step"):
        if isinstance(model, str | Path):
            return replace(load_source(str(model)), reads=files_of_model(str(model)))
        from .capture.torch import export

        exported = export(
            model,
            tuple(args),
            kwargs,
            dynamic_shapes=dynamic_shapes,
            wanted=wanted,
            guarded=guarded,
        )
        return Source(exported)
