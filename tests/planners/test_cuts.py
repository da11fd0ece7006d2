"""The bounds of single moments never exceed the time of a schedule, in whatever order."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from statistics import median
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.exact_claims import budget_at, reachable
from helpers.planners.exhaustive_orders import fastest_ns
from helpers.planners.graph_builder import Builder
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer, unet
from helpers.planners.mixed_steps import mixed_chain, mixed_dag
from remat_compile.ir.analysis.carried import Carried
from remat_compile.ir.analysis.flow import Network
from remat_compile.ir.analysis.liveness import floor_bytes, lower_bound_bytes, required_cnodes
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import Sizes
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.bounds.moments import cuts_over, least_bytes
from remat_compile.planners.bounds.relaxation import lower_bound_ns, moments_ns
from remat_compile.planners.bounds.time_bounds import TimeBounds
from remat_compile.planners.eviction.search import Search
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.run_planner import Attempt, Phases, Planned


def shuffled(program: Program, rng: Random) -> Program:
    """The same step with its computations in another order that respects what they read,
    what an accumulate ends, the loss and the stream of random numbers."""
    inst = Instance.of(program, "activation")
    count = len(inst.names_C)
    before: list[set[int]] = [set() for _ in range(count)]
    fixed = [c for c in range(count) if inst.token_C[c] >= 0 or c == inst.loss]
    for a, b in pairwise(fixed):
        before[b].add(a)
    for c in range(count):
        before[c] |= {inst.writer_A[a] for a in inst.reads_C[c] if inst.writer_A[a] >= 0}
        if inst.ends_C[c] >= 0:
            others = (d for d in range(count) if inst.ends_C[c] in inst.reads_C[d])
            before[c] |= {d for d in others if d != c}
        if inst.phase_C[c] == "fwd":
            before[inst.loss].add(c)
    done: list[int] = []
    while len(done) < count:
        ready = [c for c in range(count) if c not in done and before[c] <= set(done)]
        done.append(rng.choice(ready))
    cnodes = tuple(program.graph.cnodes[c] for c in done)
    return replace(program, graph=replace(program.graph, cnodes=cnodes))


@settings(max_examples=25, derandomize=True, deadline=None)
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
    ordered, free = (moments_ns(instance, limit, solver, 20.0, any_order=o) for o in (False, True))
    assert instance.base_time_ns <= free <= ordered
    fastest = fastest_ns(instance, limit)
    assert fastest is None or ordered <= fastest
    for turn in range(6):
        other = Instance.of(shuffled(program, Random(turn)), instance.kind)
        fastest = fastest_ns(other, limit)
        assert fastest is None or free <= fastest


@pytest.mark.parametrize("share", [0.6, 0.2])
def test_effects_and_random_numbers_are_bounded_too(solver: MilpSolver, share: float) -> None:
    for program in (stochastic(1), residual(1), unet(1), chain(4, seed=5)):
        limit = budget_at(program, share).bytes
        for turn in range(4):
            other = program if not turn else shuffled(program, Random(turn))
            instance = Instance.of(other, "activation")
            fastest = fastest_ns(instance, limit)
            if fastest is not None:
                assert moments_ns(instance, limit, solver, 20.0) <= fastest
                assert (
                    moments_ns(
                        Instance.of(program, "activation"), limit, solver, 20.0, any_order=True
                    )
                    <= fastest
                )


def test_the_bound_says_much_where_one_moment_decides(solver: MilpSolver) -> None:
    """Half of the best plan's overhead at least, on blocks of a transformer."""
    program = transformer(1)
    instance = Instance.of(program, "activation")
    limit = reachable(program, 0.5).bytes
    result = parse_planner("rk-checkmate").plan(program, reachable(program, 0.5))
    assert isinstance(result, Optimal)
    extra = moments_ns(instance, limit, solver, 20.0) - instance.base_time_ns
    assert 0.5 * (result.time_ns - instance.base_time_ns) <= extra
    assert moments_ns(instance, limit, solver, 20.0) <= result.time_ns


def test_larger_graphs_have_a_bound(solver: MilpSolver) -> None:
    program = chain(120, seed=1)
    instance = Instance.of(program, "activation")
    limit = reachable(program, 0.3).bytes
    assert len(instance.names_C) > 150
    assert lower_bound_ns(instance, limit, solver) > instance.base_time_ns


def test_moments_that_fit_ask_for_nothing() -> None:
    instance = Instance.of(chain(6), "activation")
    peak = instance.peak(instance.capture)
    assert cuts_over(instance, peak) == []
    assert cuts_over(instance, peak - 1) != []
    assert max(least_bytes(instance)) + instance.base_bytes <= peak


@pytest.mark.parametrize("turn", range(2))
@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_takes_fewer_bytes_than_the_bound(seed: int, turn: int) -> None:
    """Whatever it runs again and when, and in whatever order it runs first."""
    for program in (mixed_dag(seed, 3), mixed_chain(seed, 3), stochastic(1)):
        bound, _ = lower_bound_bytes(program, "activation")
        other = program if not turn else shuffled(program, Random(seed))
        assert fastest_ns(Instance.of(other, "activation"), bound - 1) is None


def test_the_bound_is_met_where_one_moment_decides() -> None:
    """And on most of these it is what can be had."""
    programs = [mixed_dag(seed, 4) for seed in range(8)]
    bounds = [lower_bound_bytes(program, "activation")[0] for program in programs]
    floors = [floor_bytes(program, "activation")[0] for program in programs]
    assert sum(bound > floor for bound, floor in zip(bounds, floors, strict=True)) >= 6
    met = [
        fastest_ns(Instance.of(program, "activation"), bound) is not None
        for program, bound in zip(programs, bounds, strict=True)
    ]
    assert sum(met) >= 5


def test_what_is_carried_through_a_moment() -> None:
    """Two dropout layers. When the backward of the second runs first, that of the first is to
    come, which reads x1: x1 is alive then, or the token that makes it anew."""
    b = Builder("dropout")
    b.input("x0", 40)
    b.op(["x0"], [("x1", "act", 100)], token="r1")
    b.op(["x1"], [("x2", "output", 70)], token="r2")
    b.loss(["x2"], [("dx2", 70)])
    b.param("w", 5, "dw")
    b.op(["dx2", "w"], [("dx1", "grad", 100)], phase="bwd")
    b.op(["dx1", "x1"], [("dw", "param_grad", 5)], phase="bwd")
    program = b.program()
    sizes = Sizes.of(program).anode
    carried = Carried(program, sizes, required_cnodes(program.graph))
    backward = [c.name for c in program.graph.cnodes if c.phase == "bwd"]
    assert carried.beside(backward[0], ["dx2", "dx1", "x2"]) == 16
    assert carried.beside(backward[1], ["dx1", "x1", "x2"]) == 0
    # dx2, dx1 and the result x2; r1 beside them. At the other one x1, dx1 and x2.
    assert lower_bound_bytes(program, "activation")[0] == 100 + 100 + 70


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 10_000), st.integers(3, 7))
def test_cuts_are_the_least_of_all(seed: int, nodes: int) -> None:
    rng = Random(seed)
    edges = [
        (a, b, rng.randint(0, 9)) for a in range(nodes) for b in range(nodes) if rng.random() < 0.4
    ]
    network = Network(nodes)
    for edge in edges:
        network.edge(*edge)
    sides = ({0, *some} for k in range(nodes - 1) for some in combinations(range(1, nodes - 1), k))
    least = min(sum(w for a, b, w in edges if a in s and b not in s) for s in sides)
    assert network.least_cut(0, nodes - 1) == least


# -- The relaxation never exceeds the time of a schedule, and is near it ---------------------------


@settings(max_examples=20, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from(["device", "activation"]),
    st.floats(0, 1),
)
def test_no_schedule_is_faster_than_the_bound(
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
