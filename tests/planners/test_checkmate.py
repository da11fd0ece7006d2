"""Checkmate: whole nodes, exact and rounded."""

from __future__ import annotations

import pytest

from helpers.planners.exact_claims import budget_at, holds, reachable
from helpers.planners.exhaustive_orders import fastest_ns
from helpers.planners.graphs import chain, random_dag, residual, stochastic
from remat_compile.ir.program import Budget
from remat_compile.planners import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    TimedOut,
    parse_planner,
)
from remat_compile.planners.instance import Instance
from remat_compile.planners.programs.checkmate_rows import checkmate_model, rounded_orders
from remat_compile.planners.solvers import MilpSolver


@pytest.mark.parametrize("share", [0.8, 0.4])
def test_on_chains_of_single_results_it_is_optimal(share: float) -> None:
    """With one result per node, a node is what exhaustive search keeps and drops."""
    program = chain(4, seed=4)
    budget = reachable(program, share)
    result = parse_planner("checkmate").plan(program, budget)
    holds(program, budget, result)
    instance = Instance.of(program, "activation")
    assert result.time_ns == fastest_ns(instance, budget.bytes)  # type: ignore[union-attr]


@pytest.mark.parametrize("graph", [residual(2), stochastic(1), random_dag(7, 5)])
def test_it_is_never_faster_than_rk_checkmate(graph) -> None:  # type: ignore[no-untyped-def]
    budget = reachable(graph, 0.5)
    fine = parse_planner("rk-checkmate{backward=true}").plan(graph, budget)
    assert isinstance(fine, Optimal)
    for text in ("checkmate", "checkmate{rounding=true}"):
        result = parse_planner(text).plan(graph, budget)
        holds(graph, budget, result)
        assert result.time_ns >= fine.time_ns  # type: ignore[union-attr]


def test_the_model_never_underestimates_memory() -> None:
    program = residual(2)
    instance = Instance.of(program, "device")
    for share in (0.8, 0.4):
        limit = budget_at(program, share, "device").bytes
        model = checkmate_model(instance, limit)
        with MilpSolver() as solver:
            solution = solver.solve(model.milp, 30)
        if solution.point is not None:
            order = model.order(solution.point)
            assert instance.peak(order) <= limit
            assert instance.time_ns(order) == pytest.approx(solution.objective * model.scale_ns)


def test_rounding_gives_valid_orders_whatever_the_relaxation_says() -> None:
    for program in (stochastic(2), random_dag(3, 8)):
        instance = Instance.of(program, "activation")
        model = checkmate_model(instance, reachable(program, 0.4).bytes)
        with MilpSolver() as solver:
            solution = solver.solve(model.milp.relaxed(), 30)
        assert solution.point is not None
        for order in rounded_orders(model, solution.point):
            seen: set[int] = set()
            alive: set[int] = set()
            for c in order:
                reads = instance.rereads_C[c] if c in seen else instance.reads_C[c]
                assert alive.issuperset(reads)
                alive.update(instance.rewrites_C[c] if c in seen else instance.writes_C[c])
                seen.add(c)
            assert seen == set(range(len(instance.names_C)))


def test_no_time_and_large_graphs_are_answered() -> None:
    program = chain(9)
    result = parse_planner("checkmate").plan(program, reachable(program, 0.5), time_limit_s=0)
    assert isinstance(result, TimedOut)
    large = chain(70)
    refused = parse_planner("checkmate").plan(large, Budget(1000, "activation"))
    assert isinstance(refused, NotApplicable)
    assert refused.why.code == "FB0409"
    assert "checkmate{rounding=true}" in (refused.why.hint or "")


def test_an_unreachable_budget_is_refused_with_one_that_is_reached() -> None:
    program = random_dag(0, 7)
    refused = parse_planner("checkmate").plan(program, budget_at(program, 0.0))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    result = parse_planner("checkmate").plan(program, refused.min_budget)
    holds(program, refused.min_budget, result)
    assert isinstance(result, Feasible | Optimal)
