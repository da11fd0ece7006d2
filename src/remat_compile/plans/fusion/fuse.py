"""Fusion of a plan that was made from a model: kernels, another graph, another proof.

Which fused plans are tried, and which is taken, stands in `fused_ways`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from ...fusion import Fused
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.expr import Const
from ..plan import Plan
from ..prove import Prover
from ..run_planner import PROOF_S
from .kernels import lacking, new_kernels
from .ways import FusedWays

if TYPE_CHECKING:
    from torch import Tensor

    from ...backends.torch.kernels import Kernels
    from ...capture.lowered import Lowered
    from ...ir.program import Program
    from ...ir.schedule import Schedule
    from ..files.cache import PlanCache
    from ..request import PlanRequest
    from ..run_planner import Phases


def refuse_without_model(request: PlanRequest) -> None:
    """FB0471 where fusion is asked for and there is no model to make kernels for."""
    if request.fuse not in ("none", "xla"):
        message = "kernels are made and measured for the tensors of a model, and a text holds none"
        hint = "give the model itself, or leave fusion away"
        raise FBError(Diagnostic("FB0471", message, hint=hint), usage=True)


def fused_plan(
    plan: Plan,
    lowered: Lowered,
    request: PlanRequest,
    phases: Phases,
    cache: PlanCache | None = None,
) -> Plan:
    """The plan with runs of it fused and proven anew, or as it was with the reason as a warning.
    As it was fused before, where `cache` has that; kernels whose times it has are not timed.

    FB0468 where nothing can be fused here, FB0469 where it was not worth it or not proven, FB0470
    for what was fused and how far its bits are from those of the calls. The peaks are never higher
    than those of the plan.
    """
    if request.fuse == "none":
        return plan
    if why := _obstacle(plan, request):
        return with_warnings(plan, Diagnostic("FB0468", f"the plan is not fused: {why}"))
    from ...backends.torch.kernels import InductorPrice, KernelTimes

    kernels = new_kernels(plan.program)
    values = {name: node.meta["val"] for name, node in lowered.nodes.items()}
    diagnostics: tuple[Diagnostic, ...] = ()
    if cache is not None:
        with phases.phase("cache", "looking for what was fused before"):
            known, diagnostics = cache.find_fused(plan, request)
            done = None if known is None else _as_before(plan, known, request, kernels, values)
        if isinstance(done, Plan):
            return with_warnings(done, _what_was_fused(plan, done, kernels))
        if isinstance(done, Diagnostic):
            return with_warnings(plan, done)
        diagnostics = diagnostics if done is None else cache.unused_fused(request, done)
    limit_s, once = phases.left_s(request.time_limit_s), frozenset(plan.program.header.run_once)
    measured = InductorPrice(kernels, values, limit_s, run_once=once)
    if cache is not None:
        known_times, of_prices = cache.find_times()
        measured.times |= {name: KernelTimes(*pair) for name, pair in known_times.items()}
        diagnostics = (*diagnostics, *of_prices)
    made = FusedWays(plan, request, phases, measured).made()
    if cache is not None:
        diagnostics = (*diagnostics, *cache.keep_times(measured.times))
    if request.fuse == "auto":
        made = [way for way in made if way.time_ns < plan.trace.time_ns]
    late = f" within {request.time_limit_s:g} s" if measured.is_late else ""
    reason = Diagnostic("FB0469", f"no run of this plan is faster as a kernel{late}")
    for way in made:
        with phases.phase("verify", "proving the fused plan"):
            proven = proven_fused(plan, way.fused, request)
        if isinstance(proven, Diagnostic):
            reason = proven
            continue
        done = _fused(plan, proven, way.fused.schedule, kernels)
        if cache is not None:
            diagnostics = (*diagnostics, *cache.keep_fused(plan, done, request))
        return with_warnings(done, _what_was_fused(plan, done, kernels), *diagnostics)
    return with_warnings(plan, reason, *diagnostics)


def _as_before(
    plan: Plan,
    known: Program,
    request: PlanRequest,
    kernels: Kernels,
    values: Mapping[str, Tensor],
) -> Plan | str | Diagnostic:
    """Return the plan that was fused before, proven again and with its kernels; why it cannot be
    used, where it is another step, or where this machine lacks a kernel or one takes more than was
    proven.

    FB0469 where the kernels, of which no compiler keeps any here, are not all made within the time
    limit: what was compiled is there at the next start.
    """
    from ...verifier.obligations.same_values import instances

    (schedule,) = known.schedules
    was = plan.program
    if (known.header, known.target) != (was.header, was.target):  # what a verdict rests on
        return "its graph was captured elsewhere"
    proven = proven_fused(plan, Fused(replace(known, schedules=(), proven=()), schedule), request)
    if isinstance(proven, Diagnostic):
        return proven.message
    origin = instances(plan.program, proven)
    fused = [c for c in proven.graph.cnodes if c.is_fused]
    until = monotonic() + request.time_limit_s
    for place, c in enumerate(fused):
        if monotonic() > until:
            return _late(place, len(fused), request)
        kernel = kernels.kernel(c, [values[origin.get(name, name)] for name in c.call.refs()])
        if kernel is None:
            return f"there is no kernel for {c.name} here"
        planned = c.workspace.value if isinstance(c.workspace, Const) else 0
        if kernel.workspace_bytes > planned:
            taken = f"{kernel.workspace_bytes} bytes of workspace here, {planned} were planned"
            return f"the kernel for {c.name} needs {taken}"
    return _fused(plan, proven, schedule, kernels)


def _late(made: int, of: int, request: PlanRequest) -> Diagnostic:
    message = (
        f"the kernels of a plan that was fused before are not all made within "
        f"{request.time_limit_s:g} s: {made} of {of} are"
    )
    hint = "plan again, which goes on from there, or give more time; the plan runs unfused"
    return Diagnostic("FB0469", message, hint=hint)


def _fused(plan: Plan, proven: Program, schedule: Schedule, kernels: Kernels) -> Plan:
    program = replace(proven, schedules=(schedule,))
    own = replace(plan, program=program, schedule=schedule, lower_bound_s=None, _kernels=kernels)
    return replace(own, _is_proven=True)


def _obstacle(plan: Plan, request: PlanRequest) -> str | None:
    """Why no kernel can be made here, in words."""
    if plan.program.symbols:
        return "kernels are made for fixed sizes, and a dimension is dynamic"
    if request.device is not None:
        return "kernels are measured on this machine, and the plan is for another"
    device = plan.program.header.device
    if device.split(":")[0] not in ("cpu", "cuda"):
        return f"kernels are made for CPUs and for CUDA, and the model is on {device}"
    return lacking(plan.program)


def _what_was_fused(plan: Plan, fused: Plan, kernels: Kernels) -> Diagnostic:
    """Tell what was fused, and how far its bits are from those of its calls."""
    regions = [c.call.region for c in fused.graph.cnodes if c.is_fused]
    made = [kernel for kernel in kernels.made.values() if kernel is not None]
    worst = max((kernel.difference for kernel in made), default=0.0)
    saved_ms = (plan.trace.time_ns - fused.trace.time_ns) / 1e6
    shown = "1 kernel" if len(regions) == 1 else f"{len(regions)} kernels"
    message = (
        f"{sum(map(len, regions))} calls run as {shown}, {saved_ms:.3f} ms less is predicted; bits "
        "may differ from eager by rounding (a kernel from its calls: at most "
        f"{worst:.1e} of the largest value)"
    )
    return Diagnostic("FB0470", message, hint='fuse="none" keeps every bit')


def proven_fused(plan: Plan, made: Fused, request: PlanRequest) -> Program | Diagnostic:
    """The fused program with its proof, or FB0469: its values and its bytes are looked at."""
    from ...verifier.obligations.same_values import same_values

    if differences := same_values(plan.program, made.program):
        message = f"the fused plan is another step: {differences[0].message}"
        return Diagnostic("FB0469", message, hint="report this; the plan runs unfused")
    prover = Prover(made.program, plan.budget, max(request.time_limit_s, PROOF_S))
    try:
        prover.simulate(made.schedule, "fusion")
        return prover.prove(made.schedule, "fusion")
    except FBError as error:
        message = f"the fused plan is not proven: {error.diagnostics[0].message}"
        return Diagnostic("FB0469", message, hint="the plan runs unfused")


def with_warnings(plan: Plan, *warnings: Diagnostic) -> Plan:
    """The plan with more to be said of it."""
    return replace(plan, warnings=(*plan.warnings, *warnings))
