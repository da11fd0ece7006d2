"""Fusion of a plan that was made from a model: kernels, another graph, another proof.

Several ways, of which the fastest plan is taken:

* after planning: runs of the plan's own steps, recomputations among them, as it is and with what
  kernels make again for nothing no longer saved;
* planning as if what may be folded into a kernel took a tenth of its time, and then the same; again
  with what the kernels of that plan take for it, until the plan stays as it is;
* before planning: runs of the step that recomputes nothing, or nothing but what its kernels make
  again, so that what every plan wants fused is one computation with the time of its kernel when
  the planner chooses; then after planning again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from ..ir.analysis.order import capture_order, frees_after_last_use
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.expr import Const
from ..ir.schedule import Schedule
from ..ir.semantics.simulate import simulate
from .budget import Baseline
from .fused_proof import proven_fused, with_warnings
from .plan import Plan
from .regions import lacking, new_kernels
from .run_planner import Planned, run_planner

if TYPE_CHECKING:
    from torch import Tensor

    from .._torch.lowered import Lowered
    from ..backends.torch.kernels import InductorPrice, Kernels
    from ..fusion import Fused, Priced
    from ..ir.graph import CNode
    from ..ir.program import Budget, Program
    from ..ir.schedule import Step
    from .fused_cache import FusedCache
    from .request import PlanRequest
    from .run_planner import Phases

__all__ = ["fused_plan", "refuse_without_model"]

FOLDED = 0.1
"""The share of its time that a recomputation is thought to take inside the kernel of its reader,
where none was measured yet."""
MOST_ROUNDS = 4
"""Of planning at the prices of the kernels of the round before."""
GATHERING = 0.1
"""The share of the time limit in which computations may be moved next to each other."""


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
    kept: FusedCache | None = None,
) -> Plan:
    """The plan with runs of it fused and proven anew, or as it was with the reason as a warning.
    As it was fused before, where that is `kept`.

    FB0468 where nothing can be fused here, FB0469 where it was not worth it or not proven, FB0470
    for what was fused and how far its bits are from those of the calls. The peak is never higher
    than that of the plan or, where another plan was made, than the budget.
    """
    if request.fuse == "none":
        return plan
    if why := _obstacle(plan, request):
        return with_warnings(plan, Diagnostic("FB0468", f"the plan is not fused: {why}"))
    from ..backends.torch.kernels import InductorPrice

    kernels = new_kernels(plan.program)
    values = {name: node.meta["val"] for name, node in lowered.nodes.items()}
    diagnostics: tuple[Diagnostic, ...] = ()
    if kept is not None:
        with phases.phase("cache", "looking for what was fused before"):
            known, diagnostics = kept.find(plan)
            done = None if known is None else _as_before(plan, known, request, kernels, values)
        if isinstance(done, Plan):
            return with_warnings(done, _what_was_fused(plan, done, kernels))
        if isinstance(done, Diagnostic):
            return with_warnings(plan, done)
        diagnostics = diagnostics if done is None else kept.unused(done)
    measured = InductorPrice(kernels, values, request.time_limit_s)
    pass_ = _Fusion(plan, request, phases, measured)
    ways = [(simulate(way.program, way.schedule).time_ns, way) for way in pass_.ways()]
    if request.fuse == "auto":
        ways = [(time_ns, way) for time_ns, way in ways if time_ns < plan.trace.time_ns]
    made = [way for _, way in sorted(ways, key=lambda timed: timed[0])]
    late = f" within {request.time_limit_s:g} s" if measured.is_late else ""
    reason = Diagnostic("FB0469", f"no run of this plan is faster as a kernel{late}")
    for fused in made:
        with phases.phase("verify", "proving the fused plan"):
            proven = proven_fused(plan, fused, request)
        if isinstance(proven, Diagnostic):
            reason = proven
            continue
        done = _fused_from(plan, proven, fused.schedule, kernels)
        diagnostics = diagnostics if kept is None else (*diagnostics, *kept.keep(plan, done))
        return with_warnings(done, _what_was_fused(plan, done, kernels), *diagnostics)
    return with_warnings(plan, reason, *diagnostics)


def _as_before(
    plan: Plan,
    known: Program,
    request: PlanRequest,
    kernels: Kernels,
    values: Mapping[str, Tensor],
) -> Plan | str | Diagnostic:
    """What was fused before, proven again and with its kernels; why it cannot be used, where it is
    another step, or where this machine lacks a kernel or one takes more than was proven.

    FB0469 where the kernels, of which no compiler keeps any here, are not all made within the time
    limit: what was compiled is there at the next start.
    """
    from ..fusion import Fused
    from ..verifier.same_values import instances

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
    return _fused_from(plan, proven, schedule, kernels)


def _late(made: int, of: int, request: PlanRequest) -> Diagnostic:
    message = (
        f"the kernels of a plan that was fused before are not all made within "
        f"{request.time_limit_s:g} s: {made} of {of} are"
    )
    hint = "plan again, which goes on from there, or give more time; the plan runs unfused"
    return Diagnostic("FB0469", message, hint=hint)


def _fused_from(plan: Plan, proven: Program, schedule: Schedule, kernels: Kernels) -> Plan:
    program = replace(proven, schedules=(schedule,))
    return replace(plan, program=program, schedule=schedule, lower_bound_s=None, _kernels=kernels)


@dataclass(frozen=True)
class _Fusion:
    """Fuses what was planned, and plans what was fused."""

    plan: Plan
    request: PlanRequest
    phases: Phases
    measured: InductorPrice

    def ways(self) -> Iterator[Fused]:
        """The fused plans that there are."""
        from ..fusion import peaks_of

        plan = self.plan
        for schedule in (plan.schedule, self.folded(plan.schedule)):
            after = self.fuse(plan.program, schedule)
            if after.cnodes:
                yield after
        yield from self.planned_to_fold()
        graph = plan.program.graph
        steps = frees_after_last_use(graph, capture_order(graph))
        captured = Schedule("captured", "", steps)
        for whole in dict.fromkeys((captured, self.folded(captured))):
            before = self.fuse(plan.program, whole, peaks_of(plan.program, whole))
            if not before.cnodes:
                continue
            planned = self.planned(before.program, plan.budget, self.request.time_limit_s)
            if planned is not None:
                program = replace(planned.program, schedules=(), proven=())
                yield self.fuse(program, planned.schedule)

    def planned_to_fold(self) -> Iterator[Fused]:
        """Planned as if a recomputation that may be folded into its reader took little time, then
        at what it took in the kernels so made, until a plan comes again or the time is over."""
        program, budget = self.plan.program, self.plan.budget
        until = monotonic() + self.request.time_limit_s
        shares: dict[str, float] = {}
        known: set[tuple[Step, ...]] = set()
        for _ in range(MOST_ROUNDS):
            left_s = until - monotonic()
            made = self.planned(self.at_shares(shares), budget, left_s) if left_s > 0 else None
            if made is None or made.schedule.steps in known:
                return
            known.add(made.schedule.steps)
            fused = self.fuse(program, self.folded(made.schedule))
            if not fused.cnodes:
                return
            yield fused
            shares |= self.shares(fused)

    def at_shares(self, shares: Mapping[str, float]) -> Program:
        """The program with these shares of the times of forward cNodes that may be fused."""
        graph = self.plan.program.graph
        cheap = tuple(
            replace(c, time_ns=max(1, int(c.time_ns * shares.get(c.name, FOLDED))))
            if c.phase == "fwd" and c.time_ns and self.measured.may_fuse(c)
            else c
            for c in graph.cnodes
        )
        return replace(self.plan.program, graph=replace(graph, cnodes=cheap))

    def shares(self, fused: Fused) -> dict[str, float]:
        """What recomputations take in its kernels, in shares of their time by themselves."""
        from ..fusion import recomputation_shares

        with self.phases.phase("fuse", "pricing recomputations in kernels"):
            origin, graph = self.measured.origin, self.plan.program.graph
            return recomputation_shares(fused.program, origin, graph, self.price)

    def planned(
        self, program: Program, budget: Budget | None, time_limit_s: float
    ) -> Planned | None:
        try:
            return run_planner(
                program,
                self.request.planner,
                budget,
                Baseline.of(program),
                time_limit_s=time_limit_s,
                phases=self.phases,
            )
        except FBError:
            return None  # the way is left: regions, being coarser, may have no plan in the budget

    def folded(self, schedule: Schedule) -> Schedule:
        from ..fusion import folded

        with self.phases.phase("fuse", "folding recomputations into kernels"):
            until = monotonic() + GATHERING * self.request.time_limit_s
            return folded(self.plan.program, schedule, self.measured.may_fuse, until)

    @property
    def peaks(self) -> tuple[int, int]:
        """Those of the plan that no fused one exceeds."""
        return self.plan.trace.peak_bytes, self.plan.trace.activation_peak_bytes

    def fuse(
        self, program: Program, schedule: Schedule, peaks: tuple[int, int] | None = None
    ) -> Fused:
        from ..fusion import fuse_runs, gathered, unrolled

        peaks = peaks or self.peaks
        may_fuse, always = self.measured.may_fuse, self.request.fuse == "inductor"
        with self.phases.phase("fuse", "fusing, and compiling kernels"):
            until = monotonic() + GATHERING * self.request.time_limit_s
            apart = unrolled(program, schedule)
            self.measured.add(apart.origin)
            near = gathered(apart.program, apart.schedule, may_fuse, peaks, until)
            return fuse_runs(apart.program, near, may_fuse, self.price, peaks=peaks, always=always)

    def price(self, c: CNode) -> Priced | None:
        from ..fusion import Priced

        cost = self.measured.cost(c)
        return None if cost is None else Priced(cost.time_ns, Const(cost.workspace_bytes))


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


def _what_was_fused(plan: Plan, fused: Plan, kernels: Kernels) -> Diagnostic:
    """What was fused, and how far its bits are from those of its calls."""
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
