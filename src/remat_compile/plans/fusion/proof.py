"""The proof of a fused plan: the same values as before, within the same budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError
from ..prove import Prover
from ..run_planner import PROOF_S

if TYPE_CHECKING:
    from ...fusion import Fused
    from ...ir.program import Program
    from ..plan import Plan
    from ..request import PlanRequest


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
