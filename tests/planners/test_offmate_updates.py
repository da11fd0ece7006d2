"""`offmate` on whole training steps: the O-ILP's choice in schedules, and its lower bound."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from helpers.planners.graphs import chain, encoder_decoder, residual, transformer
from helpers.planners.matrix import linked
from helpers.planners.trained import trained
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Infeasible, parse_planner
from remat_compile.planners.instance import Instance
from remat_compile.planners.offmate.blocks.instance import blocks_of, without_update_times
from remat_compile.planners.offmate.updates_bound import least_time_ns
from remat_compile.planners.offmate.updates_place import WAYS, UpdatePlacement, update_order
from remat_compile.planners.offmate.updates_program import UpdatesProgram
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline
from remat_compile.verifier import ProvenPlan, verify

GRAPHS = {
    "chain": lambda: chain(9, seed=3),
    "residual": lambda: residual(5),
    "transformer": lambda: transformer(2),
    "encoder-decoder": encoder_decoder,
}


@pytest.fixture(scope="module")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as one:
        yield one


def step(name: str, rate: float = 2.0) -> Program:
    return trained(linked(GRAPHS[name](), rate))


def budgets(program: Program, *shares: float) -> Iterator[Budget]:
    peak = Baseline.of(program).peak_bytes
    yield from (Budget(int(share * peak)) for share in shares)


@pytest.mark.parametrize("name", GRAPHS)
def test_plans_are_proven_above_the_bound_and_never_slower_than_others(name: str) -> None:
    program, plans = step(name), 0
    for budget in budgets(program, 0.5, 0.75):
        ours = parse_planner("offmate").plan(program, budget, time_limit_s=8)
        others = [
            parse_planner(other).plan(program, budget, time_limit_s=8)
            for other in ("zero-offload", "zero-infinity", "paged-states", "in-backward{of=dtr}")
        ]
        for other in others:
            if isinstance(other, Feasible):
                assert isinstance(ours, Feasible)
                assert ours.time_ns <= other.time_ns
        if isinstance(ours, Infeasible):
            continue
        assert isinstance(ours, Feasible)
        assert ours.lower_bound_ns is not None
        assert 0 < ours.lower_bound_ns <= ours.time_ns
        trace = simulate(program, ours.schedule)
        assert (trace.time_ns, trace.peak_bytes <= budget.bytes) == (ours.time_ns, True)
        assert isinstance(verify(program, ours.schedule, (budget,), time_limit_s=60), ProvenPlan)
        plans += 1
    assert plans


@pytest.mark.parametrize("rate", [0.5, 4.0])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_ways_of_updates_are_below_the_bound(name: str, rate: float, solver: MilpSolver) -> None:
    """Ways by chance, on orders with options by chance: each beats the bound of the budget that it
    needs."""
    program, rng = step(name, rate), random.Random(7)
    capture = update_order(program)
    base = Instance.of(without_update_times(program), "activation")
    choice = UpdatesProgram(program, capture.base, Baseline.of(program).peak_bytes)
    rows, tried = choice.instance.options_L, 0
    for _ in range(40):
        view = choice.view(tuple(rng.randrange(len(row)) for row in rows))
        ways = tuple(rng.choice(WAYS) for _ in view.updates)
        limit = int(rng.uniform(0.3, 1.1) * Baseline.of(program).peak_bytes)
        trace = simulate(program, UpdatePlacement(view, limit, ways).schedule("chance"))
        bound = least_time_ns(capture, base, trace.peak_bytes, solver, 10)
        assert bound <= trace.time_ns
        tried += bound > base.base_time_ns
    assert tried or rate > 1 or name == "encoder-decoder"


def test_more_bytes_never_raise_the_bound_and_all_of_them_leave_the_computations(
    solver: MilpSolver,
) -> None:
    program = step("chain", rate=0.05)
    capture = update_order(program)
    base = Instance.of(without_update_times(program), "activation")
    peak = Baseline.of(program).peak_bytes
    found = [
        least_time_ns(capture, base, int(share * peak), solver, 10)
        for share in (0.3, 0.4, 0.5, 0.6, 0.8, 9.0)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] >= base.base_time_ns


def test_a_graph_that_is_no_chain_has_the_clusters_of_hiremate_as_blocks() -> None:
    program = step("encoder-decoder")
    blocks = blocks_of(program, small_bytes=0)
    assert blocks.instance.blocks >= 4
    for options in ((0,) * blocks.instance.blocks,):
        order = blocks.order(options)
        base = update_order(program).base
        assert sorted(order) == sorted(base.capture)
        simulate(base.program, base.schedule(order, "x"))


@pytest.mark.parametrize("name", ["chain", "residual"])
def test_the_least_of_zero_infinity_is_enough(name: str) -> None:
    """Updates on the host take no workspace on the device."""
    program = step(name)
    least = parse_planner("zero-infinity").plan(program, Budget(1))
    ours = parse_planner("offmate").plan(program, Budget(1), time_limit_s=5)
    assert isinstance(least, Infeasible)
    assert isinstance(ours, Infeasible)
    assert least.min_budget is not None
    assert ours.min_budget is not None
    assert ours.min_budget.bytes <= least.min_budget.bytes
    found = parse_planner("offmate").plan(program, least.min_budget, time_limit_s=5)
    assert isinstance(found, Feasible)


def test_the_program_s_ways_are_a_start_that_fits(solver: MilpSolver) -> None:
    program = step("chain")
    (budget,) = budgets(program, 0.85)
    choice = UpdatesProgram(program, update_order(program).base, budget.bytes)
    times = []
    for options, ways in choice.choices(solver, float("inf")):
        placement = UpdatePlacement(choice.view(options), budget.bytes, ways)
        times.append(simulate(program, placement.schedule("x")).peak_bytes <= budget.bytes)
    assert any(times)
