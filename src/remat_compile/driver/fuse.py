"""Fusion of a plan that was made from a model: kernels, another graph, another proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.expr import Const
from .prove import Prover
from .regions import lacking, new_kernels

if TYPE_CHECKING:
    from .._torch.lowered import Lowered
    from ..backends.torch.kernels import InductorPrice
    from ..fusion import Fused
    from ..ir.graph import CNode
    from ..ir.program import Program
    from .plan import Plan
    from .request import PlanRequest
    from .run_planner import Phases

__all__ = ["fused_plan", "refuse_without_model"]


def refuse_without_model(request: PlanRequest) -> None:
    """FB0471 where fusion is asked for and there is no model to make kernels for."""
    if request.fuse != "none":
        message = "kernels are made and measured for the tensors of a model, and a text holds none"
        hint = "give the model itself, or leave fusion away"
        raise FBError(Diagnostic("FB0471", message, hint=hint), usage=True)


def fused_plan(plan: Plan, lowered: Lowered, request: PlanRequest, phases: Phases) -> Plan:
    """The plan with runs of it fused and proven anew, or as it was with the reason as a warning.

    FB0468 where nothing can be fused here, FB0469 where it was not worth it or not proven, FB0470
    for what was fused and how far its bits are from those of the calls. The peak is never higher.
    """
    if request.fuse == "none":
        return plan
    if why := _obstacle(plan, request):
        return _with(plan, Diagnostic("FB0468", f"the plan is not fused: {why}"))
    from ..backends.torch.kernels import InductorPrice
    from ..fusion import Priced, fuse_runs

    kernels = new_kernels(plan.program)
    values = {name: node.meta["val"] for name, node in lowered.nodes.items()}
    measured = InductorPrice(kernels, values, request.time_limit_s)

    def price(c: CNode) -> Priced | None:
        cost = measured.cost(c)
        return None if cost is None else Priced(cost.time_ns, Const(cost.workspace_bytes))

    with phases.phase("fuse", "fusing, and compiling kernels"):
        made = fuse_runs(
            plan.program,
            plan.schedule,
            measured.may_fuse,
            price,
            always=request.fuse == "inductor",
        )
    if not made.cnodes:
        late = f" within {request.time_limit_s:g} s" if measured.is_late else ""
        return _with(plan, Diagnostic("FB0469", f"no run of this plan is faster as a kernel{late}"))
    with phases.phase("verify", "proving the fused plan"):
        proven = _proven(plan, made, request)
    if isinstance(proven, Diagnostic):
        return _with(plan, proven)
    program = replace(proven, schedules=(made.schedule,))
    fused = replace(
        plan, program=program, schedule=made.schedule, lower_bound_s=None, _kernels=kernels
    )
    return _with(fused, _told(plan, fused, made.cnodes, measured))


def _obstacle(plan: Plan, request: PlanRequest) -> str | None:
    """Why no kernel can be made here, in words."""
    if plan.program.symbols:
        return "kernels are made for fixed sizes, and a dimension is dynamic"
    if request.device is not None:
        return "kernels are measured on this machine, and the plan is for another"
    device = plan.program.header.device
    if device != "cpu":
        return f"kernels are made for the CPU, and the model is on {device}"
    return lacking(plan.program)


def _proven(plan: Plan, made: Fused, request: PlanRequest) -> Program | Diagnostic:
    """The fused program with its proof, or FB0469: its values and its bytes are looked at."""
    from ..verifier.same_values import same_values

    if differences := same_values(plan.program, made.program):
        message = f"the fused plan is another step: {differences[0].message}"
        return Diagnostic("FB0469", message, hint="report this; the plan runs unfused")
    prover = Prover(made.program, plan.budget, max(request.time_limit_s, 60.0))
    try:
        prover.simulate(made.schedule, "fusion")
        return prover.prove(made.schedule, "fusion")
    except FBError as error:
        first = error.diagnostics[0]
        return replace(
            first, code="FB0469", message=f"the fused plan is not proven: {first.message}"
        )


def _told(plan: Plan, fused: Plan, cnodes: Sequence[str], measured: InductorPrice) -> Diagnostic:
    """What was fused, and how far its bits are from those of its calls."""
    calls = sum(len(fused.graph.cnode[name].call.region) for name in cnodes)
    made = [kernel for kernel in measured.kernels.made.values() if kernel is not None]
    worst = max((kernel.difference for kernel in made), default=0.0)
    saved_ms = (plan.trace.time_ns - fused.trace.time_ns) / 1e6
    shown = "1 kernel" if len(cnodes) == 1 else f"{len(cnodes)} kernels"
    message = (
        f"{calls} calls run as {shown}, {saved_ms:.3f} ms less is predicted; bits may differ from "
        f"eager by rounding (a kernel from its calls: at most {worst:.1e} of the largest value)"
    )
    return Diagnostic("FB0470", message, hint='fuse="none" keeps every bit')


def _with(plan: Plan, warning: Diagnostic) -> Plan:
    return replace(plan, warnings=(*plan.warnings, warning))
