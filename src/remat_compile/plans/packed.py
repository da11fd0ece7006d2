"""The option `codecs`: a plan whose activations are packed, where that is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..ir.codecs import pairs
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.rewrites.packs import Choice, erased, has_packs, pack
from ..ir.wording import worded
from ..planners.compression.lossless import choices_of, lossless
from ..planners.compression.unneeded import without_unneeded
from ..verifier.read.lossy import Error, Reach
from .lossy import FAMILIES
from .prove import Prover
from .run_planner import PROOF_S

if TYPE_CHECKING:
    from ..capture.lowered import Lowered
    from ..ir.program import Program
    from ..ir.semantics.simulate import Trace
    from .plan import Plan
    from .request import PlanRequest

NO_PLAN = frozenset(("FB0465", "FB0466"))
"""Refusals of a budget, which packing may meet."""


def refuse_codecs(request: PlanRequest) -> None:
    """FB0479 where codecs are asked for and there is no model whose tensors they could pack."""
    if request.codecs != "none":
        message = "codecs pack tensors by how they lie in memory, and a text does not tell of all"
        hint = "give the model itself, or leave codecs away: a text keeps the packed values it has"
        raise FBError(Diagnostic("FB0479", message, hint=hint), usage=True)


def packed(lowered: Lowered, request: PlanRequest) -> Lowered:
    """The lowered model with all values packed that the codecs asked for can pack. FB0479 for a
    device on which no axiom was tested."""
    if request.lossy is not None and request.codecs not in FAMILIES:
        hint = worded("give {codecs} too, or leave {lossy} away", codecs="linear")
        raise FBError(Diagnostic("FB0561", "no family of codecs is lossy", hint=hint), usage=True)
    if request.codecs == "none":
        return lowered
    device = lowered.program.header.device
    if device.split(":")[0] != "cpu":
        message = f"the model is on {device}, and codecs are tested on the CPU"
        hint = worded("leave {codecs} away, or plan the model on the CPU")
        raise FBError(Diagnostic("FB0479", message, hint=hint), usage=True)

    def is_contiguous(name: str) -> bool:
        is_known: bool = lowered.nodes[name].meta["val"].is_contiguous()
        return is_known

    codecs = lossless()
    if request.lossy is not None:
        codecs.append(request.lossy.codec)
    program = lowered.program

    def admits(choice: Choice) -> bool:
        return request.codecs != "linear" or is_linear(program, choice)

    choices = choices_of(program, is_contiguous, codecs, admits)
    if request.lossy is not None:
        choices = [replace(choice, seed=request.lossy.seed) for choice in choices]
    return lowered.with_program(pack(program, choices))


def without_lossy(lowered: Lowered) -> Lowered:
    """The lowered model as it is compared with eager: values that come back with an error are not
    packed."""
    program = lowered.program
    approximate = {pair.source for pair in pairs(program.graph) if pair.codec.is_lossy}
    return lowered.with_program(erased(program, approximate)) if approximate else lowered


def is_linear(program: Program, choice: Choice) -> bool:
    """Return whether all that a lossy choice changes is linear in what it packs: gradients of
    weights."""
    if not choice.codec.is_lossy:
        return True
    return Error.VALUE not in Reach(pack(program, [choice]).graph).errors.values()


def better_plan(
    program: Program, whole: Program, request: PlanRequest, plan: Callable[[Program], Plan]
) -> Plan:
    """The plan of a packed program or, by the same costs, of `whole`, which has no packed values:
    the faster one within the budget; for `least` the one of fewer bytes.

    A plan that recomputes and copies nothing is not bettered: packing takes time as well.
    """
    if not has_packs(program.graph):
        return plan(program)
    made: list[Plan] = []
    refusals: list[FBError] = []
    for each in (whole, program):
        try:
            made.append(plan(each))
        except FBError as error:
            if not NO_PLAN & {d.code for d in error.diagnostics}:
                raise
            refusals.append(error)
        if made and not _is_least(request) and made[0].trace.time_ns <= made[0].baseline.time_ns:
            break
    if not made:
        raise refusals[-1]  # that of the packed program, which needs fewer bytes
    if has_packs(made[-1].graph) and not _is_least(request):
        made[-1] = _without_unneeded(made[-1], whole, request)
    best = min(made, key=lambda each: _rank(each, request))
    return best if len(made) == 1 else replace(best, lower_bound_s=None)  # of one of the graphs


def _without_unneeded(plan: Plan, whole: Program, request: PlanRequest) -> Plan:
    """The plan with those values alone packed that it needs to be within its budget, proven."""
    budget = plan.budget

    def fits(trace: Trace) -> bool:
        peaks = {"device": trace.peak_bytes, "activation": trace.activation_peak_bytes}
        memory = plan.program.target.memory_bytes
        within = budget is None or peaks[budget.kind] <= budget.bytes
        return within and (memory is None or trace.peak_bytes <= memory)

    program = replace(plan.program, schedules=(), proven=())
    found = without_unneeded(program, plan.schedule, fits, whole.graph)
    if found is None:
        return plan
    program, schedule = found
    prover = Prover(program, budget, max(request.time_limit_s, PROOF_S))
    proven = prover.prove(schedule, plan.planner)
    return replace(plan, program=proven, schedule=schedule, lower_bound_s=None)


def _is_least(request: PlanRequest) -> bool:
    return request.budget is not None and request.budget.form == "least"


def _rank(plan: Plan, request: PlanRequest) -> tuple[int, int]:
    """The less, the better."""
    of_activations = request.budget is not None and request.budget.kind == "activation"
    peak = plan.activation_peak_bytes if of_activations else plan.peak_bytes
    time_ns = plan.trace.time_ns
    return (peak, time_ns) if _is_least(request) else (time_ns, peak)
