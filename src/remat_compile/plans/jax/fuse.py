"""Fusion of a plan for JAX: regions that XLA is seen to compute without keeping what lies between.

XLA fuses by itself, whatever a plan says; a region tells the planner, the proof and the prediction
what it keeps. Two ways, of which the fastest plan is taken, then the one with fewer bytes:

* after planning: the runs of the plan's own steps;
* before planning: the runs of the step that recomputes nothing, so that the planner chooses among
  what XLA keeps, within the same budget; then after planning again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from ...backends.jax.check import need_jax
from ...fusion import Fused, Fusing, Priced, gathered, peaks_of
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.expr import Const
from ...ir.schedule import Schedule
from ...ir.semantics.simulate import simulate
from ...report.subject import store_all
from ..budget import Baseline
from ..fusion.fuse import proven_fused, with_warnings
from ..run_planner import run_planner

if TYPE_CHECKING:
    from ...backends.jax.kernels import XlaPrice
    from ...ir.graph import CNode
    from ...ir.program import Program
    from ..plan import Plan
    from ..request import PlanRequest
    from ..run_planner import Phases

GATHERING = 0.1
"""The share of the time limit in which computations may be moved next to each other."""


def fused_for_xla(plan: Plan, request: PlanRequest, phases: Phases) -> Plan:
    """The plan with runs of it fused and proven anew, or as it was with the reason as a warning.

    FB0468 where a dimension is dynamic, FB0469 where nothing is kept less or the fused plan is not
    proven, FB0470 for what was fused. FB0920 and the like for operators that JAX has not, FB0931
    where JAX is missing. The proven peak is never above the budget, nor above the plan's where
    none is given.
    """
    need_jax()
    from ...backends.jax.support import require_lowerings

    require_lowerings(plan.program.graph)
    if plan.program.symbols:
        why = "regions are measured for fixed sizes, and a dimension is dynamic"
        return with_warnings(plan, Diagnostic("FB0468", f"the plan is not fused: {why}"))
    import jax

    from ...backends.jax.emit.tables import needs_x64
    from ...backends.jax.kernels import Shapes, XlaPrice
    from ...backends.jax.observe.predict import predicted_temp_bytes

    pass_ = _XlaFusion(plan, request, phases, XlaPrice(Shapes(plan.program)))
    with jax.enable_x64(needs_x64(plan.program)):
        ways = [
            (
                simulate(way.program, way.schedule).time_ns,
                predicted_temp_bytes(way.program, way.schedule.elementary),
                way,
            )
            for way in pass_.ways()
        ]
    reason = Diagnostic("FB0469", "the plan is not fused: XLA keeps all that its steps make")
    for _, temp_bytes, fused in sorted(ways, key=lambda way: way[:2]):
        with phases.phase("verify", "proving the fused plan"):
            proven = proven_fused(plan, fused, request)
        if isinstance(proven, Diagnostic):
            reason = proven
            continue
        program = replace(proven, schedules=(fused.schedule,))
        done = replace(plan, program=program, schedule=fused.schedule, lower_bound_s=None)
        before = predicted_temp_bytes(plan.program, plan.schedule.elementary)
        return with_warnings(done, _what_was_fused(done, before, temp_bytes))
    return with_warnings(plan, reason)


@dataclass(frozen=True)
class _XlaFusion:
    """Fuses what was planned, and plans what was fused."""

    plan: Plan
    request: PlanRequest
    phases: Phases
    measured: XlaPrice

    def ways(self) -> Iterator[Fused]:
        """The fused plans that there are."""
        plan = self.plan
        after = self.fuse(plan.program, plan.schedule)
        if after.cnodes:
            yield after
        captured = store_all(plan.program)
        if plan.budget is None or plan.schedule.steps == captured.steps:
            return
        before = self.fuse(plan.program, captured, peaks_of(plan.program, captured))
        if not before.cnodes:
            return
        try:
            planned = run_planner(
                before.program,
                self.request.planner,
                plan.budget,
                Baseline.of(before.program),
                time_limit_s=self.phases.left_s(self.request.time_limit_s),
                phases=self.phases,
            )
        except FBError:
            return  # regions are coarser, and may have no plan within the budget
        program = replace(planned.program, schedules=(), proven=())
        again = self.fuse(program, planned.schedule)
        yield again if again.cnodes else replace(again, cnodes=before.cnodes)

    def fuse(
        self, program: Program, schedule: Schedule, peaks: tuple[int, int] | None = None
    ) -> Fused:
        trace = self.plan.trace
        peaks = peaks or (trace.peak_bytes, trace.activation_peak_bytes)
        may_fuse = self.measured.may_fuse
        with self.phases.phase("fuse", "compiling regions with XLA"):
            until = monotonic() + GATHERING * self.request.time_limit_s
            near = gathered(program, schedule, may_fuse, peaks, until)
            made = Fusing(program, near, may_fuse, self.price, peaks=peaks, always=True).done()
        return made if made.cnodes else Fused(program, schedule)

    def price(self, c: CNode) -> Priced | None:
        """The time of its calls, and the workspace that XLA was seen to take."""
        workspace_bytes = self.measured.workspace_bytes(c)
        return None if workspace_bytes is None else Priced(c.time_ns or 0, Const(workspace_bytes))


def _what_was_fused(fused: Plan, before_bytes: int, bytes_: int) -> Diagnostic:
    regions = [c.call.region for c in fused.graph.cnodes if c.is_fused]
    shown = "1 region" if len(regions) == 1 else f"{len(regions)} regions"
    message = (
        f"{sum(map(len, regions))} calls are {shown} for XLA; {bytes_} temporary bytes are "
        f"predicted, {before_bytes} without"
    )
    return Diagnostic("FB0470", message, hint='for PyTorch, plan with fuse="auto" or "none"')
