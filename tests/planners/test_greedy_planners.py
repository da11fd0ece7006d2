"""The planners that solve nothing: claims under both kinds of budget, and what they run again."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners import matrix
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer
from helpers.planners.matrix import SMALL, peak_bytes, program_of
from helpers.programs.strategies import programs
from helpers.slow import default_only
from remat_compile.ir.analysis.liveness import BudgetKind, lower_bound_bytes
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.planners import Feasible, Infeasible, Optimal, parse_planner

PLANNERS = ("store-all", "periodic{segments=2}", "chen", "dtr{rounds=5}")
KINDS: tuple[BudgetKind, ...] = ("device", "activation")


def unplanned(program: Program) -> Trace:
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    return simulate(program, Schedule("plan", "", steps))


check = partial(matrix.check, prove=False)
"""The matrix proves the plans of all planners, under budgets of activations."""


@pytest.mark.parametrize("graph", default_only(SMALL, ["unet", "towers", "random 1"]))
@pytest.mark.parametrize("planner", ["periodic", "chen", "dtr"])
def test_the_least_budget_named_is_reachable(planner: str, graph: str) -> None:
    program = program_of(graph)
    low = lower_bound_bytes(program, "activation")[0]
    refused = parse_planner(planner).plan(program, Budget(max(1, low - 1), "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    assert refused.min_budget.kind == "activation"
    result = parse_planner(planner).plan(program, refused.min_budget)
    check(program, refused.min_budget, result)
    assert isinstance(result, Feasible | Optimal)


@pytest.mark.parametrize("planner", ["store-all", "periodic", "dtr", "auto"])
def test_without_a_budget_nothing_is_recomputed(planner: str) -> None:
    program = stochastic()
    result = parse_planner(planner).plan(program, None)
    assert isinstance(result, Optimal)
    assert set(simulate(program, result.schedule).executions.values()) == {1}


@pytest.mark.parametrize("planner", ["chen", "periodic{segments=3}"])
def test_without_a_budget_segments_are_made_as_told(planner: str) -> None:
    program = chain(12)
    result = parse_planner(planner).plan(program, None)
    assert isinstance(result, Feasible)
    assert max(simulate(program, result.schedule).executions.values()) == 2


@pytest.mark.parametrize(
    "graph", default_only(["uneven chain", "residual", "transformer", "random 40"], ["residual"])
)
def test_less_memory_is_never_faster_by_much(graph: str) -> None:
    program = program_of(graph)
    high = unplanned(program).activation_peak_bytes
    low = lower_bound_bytes(program, "activation")[0]
    times = []
    for share in (0.9, 0.7, 0.5, 0.35):
        budget = Budget(int(low + share * (high - low)), "activation")
        result = parse_planner("dtr").plan(program, budget)
        if isinstance(result, Infeasible):
            break
        times.append(result.time_ns)
    assert len(times) >= 2
    assert all(b >= 0.98 * a for a, b in pairwise(times))


def test_dtr_recomputes_random_and_buffered_operators_but_not_what_reads_an_update() -> None:
    program = stochastic()
    low = parse_planner("dtr").plan(program, Budget(1, "activation"))
    assert isinstance(low, Infeasible)
    assert low.min_budget is not None
    result = parse_planner("dtr").plan(program, low.min_budget)
    assert isinstance(result, Feasible)
    runs = simulate(program, result.schedule).executions
    graph = program.graph
    assert any(runs[c.name] > 1 for c in graph.cnodes if c.token)
    assert any(runs[c.name] > 1 for c in graph.cnodes if c.replay)
    assert runs[graph.loss.name] == 1
    unsafe = next(c for c in graph.cnodes if "rm0" in graph.reads(c, 2))
    assert runs[unsafe.name] == 1


def test_accumulates_run_once_and_their_terms_are_whole() -> None:
    program = residual(6)
    planner = parse_planner("dtr{scope=all}")
    refused = planner.plan(program, Budget(1, "device"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    result = planner.plan(program, refused.min_budget)
    assert isinstance(result, Feasible)
    runs = simulate(program, result.schedule).executions
    assert {runs[c.name] for c in program.graph.cnodes if c.is_accumulate} == {1}


def test_dtr_is_deterministic() -> None:
    program = transformer(2)
    budget = Budget(unplanned(program).activation_peak_bytes // 2, "activation")
    first = parse_planner("dtr").plan(program, budget)
    assert first == parse_planner("dtr").plan(program, budget)


def test_dtr_on_transformers_at_half_the_activations() -> None:
    program = transformer(4)
    trace = unplanned(program)
    budget = Budget(trace.activation_peak_bytes // 2, "activation")
    result = parse_planner("dtr").plan(program, budget)
    assert isinstance(result, Feasible)
    assert result.gap < 0.10


def test_periodic_runs_each_inner_cnode_twice_and_the_last_segment_once() -> None:
    program = chain(12)
    high = unplanned(program).activation_peak_bytes
    result = parse_planner("periodic{segments=4, by=count}").plan(
        program, Budget(high, "activation")
    )
    assert isinstance(result, Feasible)
    runs = simulate(program, result.schedule).executions
    forward = [c.name for c in program.graph.in_phase("fwd")]
    # The last layer of a segment is not run again: its result crossed and was kept.
    assert [runs[name] for name in forward] == [2, 2, 1, 2, 2, 1, 2, 2, 1, 1, 1, 1]
    loss = [s.cnode for s in result.schedule.steps if isinstance(s, Compute)].index("L12")
    assert loss == 12


STEPS = programs() | st.builds(random_dag, st.integers(0, 10_000), st.integers(1, 18))


@settings(max_examples=40)
@given(STEPS, st.sampled_from(KINDS), st.floats(0, 1))
def test_plans_keep_their_word(program: Program, kind: BudgetKind, share: float) -> None:
    high = peak_bytes(unplanned(program), kind)
    low = lower_bound_bytes(program, kind)[0]
    budget = Budget(max(1, int(low + share * (high - low))), kind)
    for planner in PLANNERS:
        check(program, budget, parse_planner(planner).plan(program, budget))
