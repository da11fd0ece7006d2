"""The relaxation never exceeds the time of a schedule, and is near it."""

from __future__ import annotations

from statistics import median
from time import monotonic

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.exact_claims import budget_at, reachable
from helpers.planners.exhaustive_orders import fastest_ns
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer, unet
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.bounds.relaxation import lower_bound_ns, moments_ns
from remat_compile.planners.bounds.time_bounds import TimeBounds
from remat_compile.planners.eviction.search import Search
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.run_planner import Attempt, Phases, Planned


@settings(max_examples=20, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from(["device", "activation"]),
    st.floats(0, 1),
)
def test_no_schedule_is_faster(
    solver: MilpSolver, seed: int, nodes: int, kind: str, share: float
) -> None:
    program = random_dag(seed, nodes)
    instance = Instance.of(program, kind)  # type: ignore[arg-type]
    limit = budget_at(program, share, instance.kind).bytes
    fastest = fastest_ns(instance, limit)
    if fastest is not None:
        bound = lower_bound_ns(instance, limit, solver)
        assert instance.base_time_ns <= bound <= fastest


def test_small_graphs_with_effects_are_bounded_too(solver: MilpSolver) -> None:
    for program in (stochastic(1), residual(1), unet(1), chain(4, seed=5)):
        for share in (0.7, 0.3):
            instance = Instance.of(program, "activation")
            limit = budget_at(program, share).bytes
            fastest = fastest_ns(instance, limit)
            assert fastest is None or lower_bound_ns(instance, limit, solver) <= fastest


def test_the_gap_to_good_plans_is_small(solver: MilpSolver) -> None:
    gaps = []
    for program in (chain(9), residual(), unet(), stochastic(), transformer(1), random_dag(7)):
        instance = Instance.of(program, "activation")
        for share in (0.8, 0.5, 0.2):
            limit = reachable(program, share).bytes
            search = Search(instance, limit, monotonic() + 60)
            search.run(20, 0)
            assert search.best is not None
            gap = search.best_ns - lower_bound_ns(instance, limit, solver)
            assert gap >= 0
            gaps.append(gap / instance.base_time_ns)
    assert median(gaps) < 0.04


def attempt(program: Program, budget: Budget, known: TimeBounds, time_limit_s: float) -> Planned:
    planner = parse_planner("dtr")
    made = Attempt(program, planner, budget, time_limit_s, Phases(), known)
    result = made.ask()
    assert isinstance(result, Feasible | Optimal)
    assert result.lower_bound_ns == Instance.of(program, "activation").base_time_ns
    return made.prove(result.schedule, result.lower_bound_ns, "dtr")


def test_who_runs_a_planner_asks_for_the_bound(solver: MilpSolver) -> None:
    program = unet()
    budget = reachable(program, 0.5)
    instance = Instance.of(program, "activation")
    known = TimeBounds(program)
    assert attempt(program, budget, known, 3.0).lower_bound_ns == instance.base_time_ns  # too late
    planned = attempt(program, budget, known, 60.0)
    assert planned.lower_bound_ns == lower_bound_ns(instance, budget.bytes, solver)
    assert planned.lower_bound_ns > instance.base_time_ns
    # What is known is not asked for again, and costs no time.
    assert attempt(program, budget, known, 3.0).lower_bound_ns == planned.lower_bound_ns


def test_a_claimed_bound_that_the_plan_refutes_is_dropped_for_one_that_holds() -> None:
    program = unet()
    budget = reachable(program, 0.5)
    made = Attempt(program, parse_planner("dtr"), budget, 60.0, Phases())
    result = made.ask()
    assert isinstance(result, Feasible)
    planned = made.prove(result.schedule, result.time_ns + 1, "dtr")
    assert planned.lower_bound_ns is not None
    assert Instance.of(program, "activation").base_time_ns < planned.lower_bound_ns
    assert planned.lower_bound_ns <= result.time_ns


def test_without_time_it_is_trivial_and_on_large_graphs_that_of_moments(solver: MilpSolver) -> None:
    program = chain(30)
    instance = Instance.of(program, "activation")
    limit = reachable(program, 0.4).bytes
    assert lower_bound_ns(instance, limit, solver, 0.0) == instance.base_time_ns
    coarse = lower_bound_ns(instance, limit, solver, most_cnodes=10)
    assert coarse == moments_ns(instance, limit, solver, 10.0)
    assert instance.base_time_ns < coarse


def test_the_relaxation_says_more_than_moments_on_a_chain(solver: MilpSolver) -> None:
    program = chain(12, seed=2)
    instance = Instance.of(program, "activation")
    limit = reachable(program, 0.2).bytes
    coarse = lower_bound_ns(instance, limit, solver, most_cnodes=10)
    assert lower_bound_ns(instance, limit, solver) > coarse
