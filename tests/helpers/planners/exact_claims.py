"""What the tests of the exact planners share: budgets within reach, and checked claims."""

from __future__ import annotations

from time import monotonic

from helpers.planners.matrix import peak_bytes
from remat_compile.ir.analysis.liveness import BudgetKind, lower_bound_bytes
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.planners import Feasible, Optimal, PlanResult
from remat_compile.planners.eviction.search import Search
from remat_compile.planners.instance import Instance


def budget_at(program: Program, share: float, kind: BudgetKind = "activation") -> Budget:
    """Between the proven floor and what the unplanned step needs."""
    high = Instance.of(program, kind).peak(Instance.of(program, kind).capture)
    low = lower_bound_bytes(program, kind)[0]
    return Budget(int(low + share * (high - low)), kind)


def reachable(program: Program, share: float) -> Budget:
    """Between the least activation bytes that walks reach and what the unplanned step needs."""
    instance = Instance.of(program, "activation")
    low = instance.peak(Search(instance, 1, monotonic() + 60).least())
    high = instance.peak(instance.capture)
    return Budget(int(low + share * (high - low)), "activation")


def holds(program: Program, budget: Budget, result: PlanResult) -> Trace:
    """Asserts that a result has a plan that keeps its word; the trace of the plan."""
    assert isinstance(result, Optimal | Feasible)
    trace = simulate(program, result.schedule)
    assert peak_bytes(trace, budget.kind) <= budget.bytes
    assert trace.time_ns == result.time_ns
    assert result.lower_bound_ns is not None
    assert result.lower_bound_ns <= result.time_ns
    return trace
