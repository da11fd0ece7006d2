"""Moving computations: the tied head of a language model, and orders that stay valid."""

from __future__ import annotations

from time import monotonic

import pytest

from helpers.clock import HANGS_S
from helpers.planners.exact_claims import holds, reachable
from helpers.planners.graphs import Builder, chain, random_dag, residual, stochastic, unet
from helpers.planners.stop import stop_at
from helpers.slow import default_only
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import Feasible, Infeasible, Optimal, parse_planner
from remat_compile.planners.auto import Auto
from remat_compile.planners.bounds.reordering import Reordering
from remat_compile.planners.bounds.time_bounds import TimeBounds
from remat_compile.planners.eviction.reorder import Reorder
from remat_compile.planners.instance import Instance
from remat_compile.planners.results import Task
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.run_planner import Attempt, Phases
from remat_compile.verifier import ProvenPlan, verify


def tied(layers: int = 6) -> Program:
    """A stack between an embedding and a head that share their weight: its gradient from the
    head waits for that from the embedding, and is made while the tangent is alive."""
    b = Builder("tied")
    b.input("ids", 4)
    b.param("w", 300, "dw")
    b.op(["ids", "w"], [("x0", "act", 30)], time=2)
    for i in range(layers):
        b.param(f"v{i}", 10, f"dv{i}")
        b.op([f"x{i}", f"v{i}"], [(f"h{i}", "act", 60)], time=40)
        b.op([f"h{i}"], [(f"x{i + 1}", "act", 30)], time=20)
    b.op([f"x{layers}", "w"], [("y", "output", 400)], time=200)
    b.loss(["y"], [("dy", 400)])
    b.op([f"x{layers}", "dy"], [("g", "grad", 300)], phase="bwd", time=200)
    b.op(["dy", "w"], [(f"d{layers}", "grad", 30)], phase="bwd", time=200)
    for i in reversed(range(layers)):
        b.op([f"d{i + 1}", f"h{i}"], [(f"e{i}", "grad", 60)], phase="bwd", time=40)
        results = [(f"dv{i}", "param_grad", 10), (f"d{i}", "grad", 30)]
        b.op([f"e{i}", f"x{i}", f"v{i}"], results, phase="bwd", time=80)  # type: ignore[arg-type]
    b.op(["d0", "ids"], [("f", "grad", 300)], phase="bwd", time=4)
    b.accumulate("g", "f", "dw", "param_grad", 300)
    return b.program()


BUDGET = Budget(1230, "activation")


def test_a_gradient_that_only_waits_is_made_later() -> None:
    program = tied()
    exact = parse_planner("rk-checkmate").plan(program, BUDGET)
    assert isinstance(exact, Optimal)  # in the order of capture
    result = parse_planner("reorder").plan(program, BUDGET)
    trace = holds(program, BUDGET, result)
    assert trace.time_ns < exact.time_ns
    assert result.schedule.planner == "reorder"  # type: ignore[union-attr]
    assert isinstance(verify(program, result.schedule, (BUDGET,)), ProvenPlan)  # type: ignore[union-attr]


def test_auto_takes_the_better_order_and_claims_no_bound_of_the_other() -> None:
    program = tied()
    exact = parse_planner("rk-checkmate").plan(program, BUDGET)
    assert isinstance(exact, Optimal)
    said: list[str] = []
    progress = stop_at("auto: rk-checkmate raises the bound", said)
    auto = Auto(horizon=10**18)
    result = auto.plan(program, BUDGET, time_limit_s=HANGS_S, progress=progress)
    assert isinstance(result, Optimal | Feasible)
    assert result.time_ns < exact.time_ns, said
    assert "reorder" in result.schedule.planner
    assert result.lower_bound_ns is not None
    assert result.lower_bound_ns <= result.time_ns
    assert isinstance(verify(program, result.schedule, (BUDGET,)), ProvenPlan)


def test_a_budget_below_the_peak_of_the_captured_order_is_reached() -> None:
    """The head's weight gradient, tangent and result need 1130 bytes and what is read there."""
    program = tied()
    low = parse_planner("dtr").plan(program, Budget(1, "activation"))
    assert isinstance(low, Infeasible)
    refused = parse_planner("reorder").plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert low.min_budget is not None
    assert refused.min_budget is not None
    assert refused.min_budget.bytes <= low.min_budget.bytes


@pytest.mark.parametrize("share", default_only([0.7, 0.3], [0.3]))
@pytest.mark.parametrize(
    "program",
    [chain(8, seed=3), residual(3), unet(3), stochastic(2), random_dag(3, 10), random_dag(9, 14)],
    ids=lambda p: p.graph.name,
)
def test_never_slower_than_what_it_runs(program: Program, share: float) -> None:
    budget = reachable(program, share)
    plain = parse_planner("dtr{rounds=0}").plan(program, budget)
    moved = parse_planner("reorder{of=dtr{rounds=0}}").plan(program, budget)
    assert isinstance(moved, Infeasible) == isinstance(plain, Infeasible)
    if not isinstance(plain, Infeasible):
        trace = holds(program, budget, moved)
        assert trace.time_ns <= plain.time_ns
        assert isinstance(verify(program, moved.schedule, (budget,)), ProvenPlan)  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", default_only(range(6), [2, 4]))
def test_a_moved_order_is_a_plan_of_the_captured_program(seed: int) -> None:
    """Whatever the search does, the unplanned step in its order is proven for the original."""
    program = random_dag(seed, 12)
    inst = Instance.of(program, "activation")
    search = Reordering(inst, reachable(program, 0.2).bytes, MilpSolver())
    rows = [
        order for worst in range(len(inst.names_C)) for order in search._moves(inst.capture, worst)
    ]
    assert rows
    for order in rows[:: max(1, len(rows) // 8)]:
        verdict = verify(program, inst.schedule(order, "moved"))
        assert isinstance(verdict, ProvenPlan), verdict


def test_a_plan_of_another_order_claims_only_bounds_of_all_orders() -> None:
    program = tied()
    task = Task.of(program, BUDGET, "x", monotonic() + HANGS_S)
    inst = task.instance
    with MilpSolver() as solver:
        search = Reordering(inst, BUDGET.bytes, solver)
        order = search.run(monotonic() + HANGS_S)
    assert order is not None
    moved = parse_planner("dtr").plan(search.program(order), BUDGET)
    assert isinstance(moved, Optimal | Feasible)
    index = {name: c for c, name in enumerate(inst.names_C)}
    runs = [index[s.cnode] for s in moved.schedule.steps if hasattr(s, "cnode")]
    answer = task.answer(runs)
    assert answer.lower_bound_ns is not None
    bounds = TimeBounds(program)
    attempt = Attempt(program, Reorder(), BUDGET, 60.0, Phases(), bounds)
    planned = attempt.prove(answer.schedule, answer.lower_bound_ns, "x")
    assert planned.lower_bound_ns == bounds.lower_ns(BUDGET, 60.0, any_order=True)
    assert planned.lower_bound_ns < bounds.lower_ns(BUDGET, 60.0, any_order=False)
    assert inst.base_time_ns < planned.lower_bound_ns <= answer.time_ns


def test_reorder_of_reorder_is_refused() -> None:
    with pytest.raises(FBError) as info:
        parse_planner("reorder{of=reorder}")
    assert info.value.diagnostics[0].code == "FB0404"


def test_auto_goes_on_in_the_order_that_leads() -> None:
    said: list[str] = []
    progress = stop_at("auto: reorder{of=rk-checkmate}, for", said)
    auto = Auto(horizon=10**18)
    result = auto.plan(tied(20), BUDGET, time_limit_s=HANGS_S, progress=progress)
    assert isinstance(result, Optimal | Feasible)
    assert "reorder" in result.schedule.planner
    assert any(line.startswith("auto: reorder{of=rk-checkmate}, for") for line in said), said
    assert isinstance(verify(tied(20), result.schedule, (BUDGET,)), ProvenPlan)
