"""Making a plan of a model, or of a program as text: costs, planner, proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..capture.decisions.names import matching_cnodes
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Budget, Program
from ..ir.rewrites.packs import has_lossy, has_packs, with_costs_of
from ..ir.rewrites.updates import for_planners, with_updates
from ..ir.semantics.simulate import simulate
from ..ir.wording import worded
from ..planners.auto import Auto
from ..planners.contract import makes_copies, uses_homes
from ..planners.results import peak_of
from ..report.subject import store_all
from .budget import Baseline, resolve_budget
from .files.cache import PlanCache
from .files.store import user_store
from .fit.auto import with_auto_budget
from .fusion.fuse import fused_plan, refuse_without_model
from .jax.fuse import fused_for_xla
from .messages.progress import Say
from .packed import better_plan, packed, refuse_codecs, without_lossy
from .plan import Plan
from .request import PlanRequest
from .run_planner import Phases, run_planner
from .source import Source
from .sweep.least import run_for_least

if TYPE_CHECKING:
    from torch import Tensor

    from ..capture.lowered import Lowered
    from ..capture.torch.optimizer import OptimizerUpdates
    from ..costs import Device


def plan_source(source: Source, request: PlanRequest, phases: Phases) -> Plan:
    """Lowers, costs, plans and proves an exported model.

    With measured costs the graph is also run once against eager (FB0512). A plan made
    for another device is checked when it is bound to the model.
    """
    from ..capture.torch import ensure_trusted

    with planned_source(source, request, phases) as (plan, lowered):
        pass
    if request.device is None:
        try:
            with phases.phase("check", "running the graph once against eager"):
                ensure_trusted(without_lossy(lowered))
        except FBError as error:
            return plan_source(with_caches(source, error), request, phases)
    return plan


def with_caches(source: Source, error: FBError) -> Source:
    """For a second capture, where the first was refused: with the caches that eager makes for the
    generation of text. The copies in them lie otherwise in memory, and a kernel may round by that.
    Raises `error` where that is not why."""
    exported = source.exported.with_caches()
    if exported is None or any(d.code != "FB0512" for d in error.diagnostics):
        raise error
    return replace(source, exported=exported)


@contextmanager
def planned_source(
    source: Source, request: PlanRequest, phases: Phases
) -> Iterator[tuple[Plan, Lowered]]:
    """The plan and, inside the block, the lowered model that it was made from.

    With `request.cache` it is one that was made before, where there is one for that graph.
    """
    with _lowered(source, request.device, phases) as lowered:
        steps = source.optimizer is not None
        request, auto = with_auto_budget(request, lowered.program, steps=steps)
        _with_wishes(lowered.program, request)  # what matches nothing is told before costs
        if source.optimizer is not None and request.lossy is not None:
            message = "in a step with an optimizer approximate gradients would reach parameters"
            hint = worded("use {codecs} without {lossy}, or compile without the optimizer")
            raise FBError(Diagnostic("FB0561", message, hint=hint), usage=True)
        packed_too = packed(lowered, request)
        store = user_store() if request.cache else None
        cache = None if store is None else PlanCache.of(store, packed_too)
        given = request, phases, cache, source.optimizer
        diagnostics: tuple[Diagnostic, ...] = ()

        def make() -> Plan:
            nonlocal diagnostics
            plan, diagnostics = _cached_or_made(packed_too, lowered, *given)
            return plan

        from .pipeline.agree import on_all_ranks

        plan = on_all_ranks(lowered.exported, make)
        lowered = packed_too if has_packs(plan.graph) else lowered
        if request.fuse == "xla":
            plan = fused_for_xla(plan, request, phases)
        else:
            kept = cache if source.optimizer is None else None
            plan = fused_plan(plan, lowered, request, phases, kept)
        warnings = (
            *source.warnings,
            *source.exported.warnings,
            *lowered.warnings,
            *plan.warnings,
            *diagnostics,
            *(() if auto is None else (auto.told(plan),)),
            *_unused_link(request),
        )
        unlike = tuple(dict.fromkeys(warnings))  # a folder that cannot be written is so for all
        plan = replace(plan, warnings=unlike, phase_s=phases.seconds)
        plan = replace(plan, _exported=source.exported, _reads=source.reads)
        yield plan, lowered


def _cached_or_made(
    lowered: Lowered,
    whole: Lowered,
    request: PlanRequest,
    phases: Phases,
    cache: PlanCache | None,
    optimizer: OptimizerUpdates | None,
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """The plan, and what is to be said of the cache. `whole` has no packed values."""
    diagnostics: tuple[Diagnostic, ...] = ()
    if cache is not None and optimizer is None:
        with phases.phase("cache", "looking for a plan that was made before"):
            known, diagnostics = cache.find_plan(lowered.program, request)
        if known is not None:
            return known, diagnostics
    program, of_costs = _with_costs(lowered, request.device, phases, cache)
    diagnostics = (*diagnostics, *of_costs)
    program = _with_updates(program, optimizer, request, phases)
    plain = program
    if has_packs(program.graph):
        plain, _ = _with_costs(whole, request.device, phases)
        if optimizer is not None:
            plain = optimizer.on(plain, measured=request.device is None, as_in=program)
            if request.device is not None:
                plain = _roofline(plain, request.device, phases)
        program = with_costs_of(program, plain.graph)
    plan = better_plan(program, plain, request, lambda each: plan_costed(each, request, phases))
    if cache is not None and optimizer is None and not plan.warnings:
        diagnostics = (*diagnostics, *cache.keep_plan(plan, request))
    return plan, diagnostics


def plan_program(program: Program, request: PlanRequest, phases: Phases) -> Plan:
    """Plans and proves a program, in place of the schedules it holds. See `costed_program`."""
    refuse_without_model(request)
    refuse_codecs(request)
    program = costed_program(program, request, phases)
    request, auto = with_auto_budget(request, program, steps=False)
    plan = plan_costed(program, request, phases)
    plan = fused_for_xla(plan, request, phases) if request.fuse == "xla" else plan
    told = () if auto is None else (auto.told(plan),)
    return replace(plan, warnings=(*plan.warnings, *told, *_unused_link(request)))


@contextmanager
def costed(
    source: Source, device: Device | None, phases: Phases
) -> Iterator[tuple[Program, Lowered]]:
    """The program with its costs and, inside the block, the lowered model."""
    with _lowered(source, device, phases) as lowered:
        program, _ = _with_costs(lowered, device, phases)
        yield program, lowered


@contextmanager
def _lowered(source: Source, device: Device | None, phases: Phases) -> Iterator[Lowered]:
    from ..capture.torch import lower

    with ExitStack() as stack:
        with phases.phase("lower", "lowering to a forward-backward graph"):
            lowered = stack.enter_context(lower(source.exported))
        header = replace(lowered.program.header, source=source.name, sha256=source.sha256)
        if device is not None:  # nothing is run, so no replay form is compared: verdicts list them
            header = replace(header, replays="")
        yield lowered.with_program(replace(lowered.program, header=header))


def _with_costs(
    lowered: Lowered, device: Device | None, phases: Phases, cache: PlanCache | None = None
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program with its costs, those in the `cache` where there are some, and what is to be
    said of them."""
    if device is not None:
        return _roofline(lowered.program, device, phases), ()
    diagnostics: tuple[Diagnostic, ...] = ()
    if cache is not None:
        with phases.phase("cache", "looking for costs that were measured before"):
            known, diagnostics = cache.find_costs(lowered.program)
        if known is not None:
            return known, diagnostics
    with phases.phase("costs", "measuring each computation"):
        program = _measured(lowered, phases.said)
    return program, diagnostics if cache is None else (*diagnostics, *cache.keep_costs(program))


def _with_updates(
    program: Program, optimizer: OptimizerUpdates | None, request: PlanRequest, phases: Phases
) -> Program:
    """The program with the updates of the optimizer, where there is one, and their costs."""
    if optimizer is None:
        return program
    program = _in_calls(program, optimizer, request)
    return program if request.device is None else _roofline(program, request.device, phases)


def _in_calls(program: Program, optimizer: OptimizerUpdates, request: PlanRequest) -> Program:
    """The program with its updates: in as few calls of the optimizer as its time asks for, where
    the step fits into the budget with them and nothing has to be at home on the host."""
    measured = request.device is None
    if not uses_homes(request.planner):
        few = optimizer.on(program, measured=measured, few=True)
        if request.budget is None:
            return few
        budget = resolve_budget(request.budget, Baseline.of(few))
        in_backward = with_updates(few, store_all(for_planners(few)))
        if peak_of(simulate(few, in_backward), budget.kind) <= budget.bytes:
            return few
    return optimizer.on(program, measured=measured)


def costed_program(model: Program | Source, request: PlanRequest, phases: Phases) -> Program:
    """The program with the costs, `grads` and host memory that were asked for, to be planned.

    A text loses its schedules and keeps its own costs where none were asked for. FB0713 where
    they are to be measured, which needs the model.
    """
    if isinstance(model, Source):
        with costed(model, request.device, phases) as (program, _):
            program = _with_updates(program, model.optimizer, request, phases)
            return _as_requested(program, request)
    if has_lossy(model.graph) and request.lossy is None:
        message = "the graph has lossy codecs, and nobody allowed approximate gradients"
        raise FBError(Diagnostic("FB0561", message, hint=worded("add {lossy}", lossy="int8")))
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
    return _with_wishes(program, request)


def _with_wishes(program: Program, request: PlanRequest) -> Program:
    """The program with what is to run once; that of a text stays where nothing was asked for."""
    if not request.run_once:
        return program
    once = matching_cnodes(program.graph, request.run_once)
    return replace(program, header=replace(program.header, run_once=once))


def plan_costed(program: Program, request: PlanRequest, phases: Phases) -> Plan:
    program = _as_requested(program, request)
    baseline = Baseline.of(program)
    budget = _target_memory(program, baseline)
    if request.budget is not None:
        budget = resolve_budget(request.budget, baseline)
    is_least = request.budget is not None and request.budget.form == "least"
    run = run_for_least if budget is not None and is_least else run_planner
    planned = run(
        program,
        request.planner,
        budget,
        baseline,
        time_limit_s=phases.left_s(request.time_limit_s, len(program.graph.cnodes)),
        phases=phases,
    )
    bound_ns = planned.lower_bound_ns
    return Plan(
        planned.program,
        planned.schedule,
        planned.budget,
        warnings=planned.warnings,
        lower_bound_s=None if bound_ns is None else bound_ns / 1e9,
        phase_s=phases.seconds,
        _is_proven=True,
        _allow_lossy=request.lossy is not None,
    )


def _unused_link(request: PlanRequest) -> tuple[Diagnostic, ...]:
    """FB0977 for a planner that copies nothing, and is given a link."""
    planner = request.planner
    uses = isinstance(planner, Auto) or makes_copies(planner) or uses_homes(planner)
    if request.link is None or uses:
        return ()
    message = f"{planner.name} copies nothing to the host, and does not use the link"
    hint = worded("take {planner}, or leave {link} away", planner="auto")
    return (Diagnostic("FB0977", message, hint=hint),)


def _target_memory(program: Program, baseline: Baseline) -> Budget | None:
    """The memory of the target, where the step without recomputation does not fit into it."""
    memory = program.target.memory_bytes
    return Budget(memory) if memory is not None and baseline.peak_bytes > memory else None


def _measured(lowered: Lowered, said: Say | None) -> Program:
    from ..costs import measured

    values, is_away = lowered.values(), lowered.exported.is_away
    if is_away:  # only the form of parameters counts
        for p in lowered.program.binding.params:
            values[p.name] = _without_values(values[p.name])
    hold = False if is_away else None
    program: Program = measured(lowered.program, values, hold_tensors=hold, progress=said)
    return program


def _without_values(tensor: Tensor) -> Tensor:
    import torch

    form: Any = {"dtype": tensor.dtype, "device": "meta"}
    return torch.empty_strided(tensor.shape, tensor.stride(), **form)


def _roofline(program: Program, device: Device, phases: Phases) -> Program:
    from ..costs import roofline

    with phases.phase("costs", f"costs by roofline for {device.name}"):
        return roofline(program, device)
