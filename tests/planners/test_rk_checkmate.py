"""The compact ILP, the thesis formulation, and exhaustive search agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.exact_claims import budget_at, holds, reachable
from helpers.planners.exhaustive_orders import fastest_ns
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer, unet
from remat_compile.ir.analysis.liveness import BudgetKind
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    TimedOut,
    parse_planner,
)
from remat_compile.planners.instance import Instance
from remat_compile.planners.programs import compact
from remat_compile.planners.programs.answer import saved_bytes_of
from remat_compile.planners.programs.checkmate_rows import checkmate_model, rounded_orders
from remat_compile.planners.programs.compact import NotStated, compact_model
from remat_compile.planners.programs.events import all_events, order_of, useful_pairs
from remat_compile.planners.programs.rk_checkmate import RkCheckmate
from remat_compile.planners.programs.rk_checkmate_rows import thesis_model
from remat_compile.planners.programs.solve_compact import solve_compact
from remat_compile.planners.solvers import MilpSolver

KINDS: tuple[BudgetKind, ...] = ("device", "activation")
TINY: dict[str, Callable[[], Program]] = {
    "chain": lambda: chain(3),
    "uneven chain": lambda: chain(4, seed=2),
    "residual": lambda: residual(1),
    "unet": lambda: unet(1),
    "stochastic": lambda: stochastic(1),
    **{f"random {seed}": lambda seed=seed: random_dag(seed, 3) for seed in (1, 2, 3, 5, 8)},  # type: ignore[misc]
}
SMALL: dict[str, Callable[[], Program]] = {
    "chain": lambda: chain(5),
    "residual": lambda: residual(2),
    "unet": lambda: unet(3),
    "stochastic": lambda: stochastic(2),
    "random 1": lambda: random_dag(1, 7),
    "random 9": lambda: random_dag(9, 6),
}


@pytest.fixture(scope="module")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as running:
        yield running


def compact_ns(
    instance: Instance, limit_bytes: int, solver: MilpSolver, saved_bytes: int | None = None
) -> int | None:
    """The optimum of the compact form, backward cNodes and every pair included."""
    pairs = useful_pairs(instance, backward=True, every=True)
    solution = solve_compact(
        instance,
        limit_bytes,
        saved_bytes=saved_bytes,
        time_limit_s=60,
        pairs=pairs,
        solver=solver,
    )
    assert solution.status in ("optimal", "infeasible")
    if solution.order is None:
        return None
    assert instance.peak(solution.order) <= limit_bytes
    assert instance.time_ns(solution.order) == solution.time_ns == solution.bound_ns
    return solution.time_ns


@pytest.mark.parametrize("graph", TINY)
@pytest.mark.parametrize("kind", KINDS)
def test_the_compact_form_equals_exhaustive_search(
    graph: str, kind: BudgetKind, solver: MilpSolver
) -> None:
    program = TINY[graph]()
    instance = Instance.of(program, kind)
    for share in (0.8, 0.4, 0.15):
        limit = budget_at(program, share, kind).bytes
        assert compact_ns(instance, limit, solver) == fastest_ns(instance, limit)


@pytest.mark.parametrize("graph", SMALL)
def test_the_thesis_formulation_equals_the_compact_form(graph: str, solver: MilpSolver) -> None:
    program = SMALL[graph]()
    for kind, share in (("device", 0.4), ("activation", 0.6), ("activation", 0.2)):
        instance = Instance.of(program, kind)  # type: ignore[arg-type]
        limit = budget_at(program, share, instance.kind).bytes
        model = thesis_model(instance, limit)
        solution = solver.solve(model.milp, 60.0)
        assert solution.status in ("optimal", "infeasible")
        expected = compact_ns(instance, limit, solver)
        if solution.point is None:
            assert expected is None
            continue
        order = model.order(solution.point)
        assert instance.peak(order) <= limit
        assert instance.time_ns(order) == expected


def test_both_forms_and_exhaustive_search_hold_the_saved_budget(solver: MilpSolver) -> None:
    program = chain(4, seed=3)
    instance = Instance.of(program, "activation")
    limit = instance.peak(instance.capture)
    most = saved_bytes_of(instance, instance.capture)
    for saved in (most, most - 1, most * 3 // 4, most // 2):
        ours = compact_ns(instance, limit, solver, saved)
        model = thesis_model(instance, limit, saved)
        solution = solver.solve(model.milp, 60.0)
        assert ours == fastest_ns(instance, limit, saved)
        if solution.point is None:
            assert ours is None
        else:
            order = model.order(solution.point)
            assert instance.time_ns(order) == ours
            assert saved_bytes_of(instance, order) <= saved


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from(KINDS), st.floats(0, 1))
def test_what_the_model_counts_is_what_the_simulator_counts(
    seed: int, nodes: int, kind: BudgetKind, share: float
) -> None:
    """The rows hold at the point of an order exactly if its peak is in budget."""
    program = random_dag(seed, nodes)
    instance = Instance.of(program, kind)
    events = all_events(useful_pairs(instance, backward=True, every=True))
    optional = [i for i, e in enumerate(events) if e.optional]
    chosen = {i for i in optional if hash((seed, i)) % 4 == 0}
    needed = compact_model(instance, events, 1 << 40).event_column
    chosen = {i for i in chosen if needed[i] >= 0}
    order = order_of(events, chosen)
    top = instance.peak(order)
    for limit, fits in ((top, True), (top - 1, False)):
        model = compact_model(instance, events, limit)
        point = model.point(chosen)
        milp = model.milp
        held = model.fits
        for r in range(milp.rows):
            entries = slice(milp.starts[r], milp.starts[r + 1])
            total = float(milp.value[entries] @ point[milp.index[entries]])
            held = held and milp.row_lower[r] - 1e-12 <= total <= milp.row_upper[r] + 1e-12
        # A replay that no one reads, or of what is alive, may break other rows too.
        assert not held or fits


def test_a_transformer_block_is_planned_optimally_in_both_forms_families() -> None:
    program = transformer(1)
    budget = reachable(program, 0.5)
    result = parse_planner("rk-checkmate").plan(program, budget)
    trace = holds(program, budget, result)
    assert isinstance(result, Optimal)
    dtr = parse_planner("dtr").plan(program, budget)
    assert trace.time_ns <= dtr.time_ns  # type: ignore[union-attr]


def test_two_transformer_blocks_are_proven() -> None:
    program = transformer(2)
    budget = reachable(program, 0.8)
    result = parse_planner("rk-checkmate").plan(program, budget, time_limit_s=60)
    holds(program, budget, result)
    assert isinstance(result, Optimal)


def test_the_saved_budget_is_an_option() -> None:
    program = residual(3)
    instance = Instance.of(program, "activation")
    saved = saved_bytes_of(instance, instance.capture) * 2 // 3
    planner = RkCheckmate(saved_bytes=saved)
    budget = Budget(instance.peak(instance.capture), "activation")
    result = planner.plan(program, budget)
    trace = holds(program, budget, result)
    loss = program.graph.loss
    own = sum(instance.size_A[instance.index_A[name]] for name in loss.results)
    assert trace.during_activation[trace.loss_step] - own <= saved
    assert trace.time_ns > instance.base_time_ns


def test_recomputed_backward_cnodes_reach_further() -> None:
    program = random_dag(7)
    budget = budget_at(program, 0.2, "device")
    forward = parse_planner("rk-checkmate{backward=false}").plan(program, budget)
    both = parse_planner("rk-checkmate").plan(program, budget)
    assert isinstance(forward, Infeasible)
    holds(program, budget, both)


def test_random_and_buffered_operators_run_again() -> None:
    program = stochastic()
    budget = budget_at(program, 0.3)
    result = parse_planner("rk-checkmate").plan(program, budget)
    runs = holds(program, budget, result).executions
    assert any(runs[c.name] > 1 for c in program.graph.cnodes if c.token)
    assert any(runs[c.name] > 1 for c in program.graph.cnodes if c.replay)


def test_the_thesis_form_is_an_option() -> None:
    program = residual(2)
    budget = budget_at(program, 0.5)
    thesis = parse_planner("rk-checkmate{form=thesis}").plan(program, budget)
    compact = parse_planner("rk-checkmate").plan(program, budget)
    holds(program, budget, thesis)
    assert isinstance(thesis, Optimal)
    assert isinstance(compact, Optimal)
    assert thesis.time_ns == compact.time_ns


def test_no_time_still_answers() -> None:
    program = transformer(2)
    result = parse_planner("rk-checkmate").plan(program, reachable(program, 0.4), time_limit_s=0)
    assert isinstance(result, TimedOut | Feasible)


def test_an_unreachable_budget_names_one_that_is_reached() -> None:
    program = random_dag(1)
    refused = parse_planner("rk-checkmate").plan(program, budget_at(program, 0.05))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    result = parse_planner("rk-checkmate").plan(program, refused.min_budget)
    holds(program, refused.min_budget, result)


def test_a_program_is_not_stated_that_is_too_large_or_late(
    monkeypatch: pytest.MonkeyPatch, solver: MilpSolver
) -> None:
    """A thread that states one cannot be ended from outside, and its bytes grow with the cube
    of the graph: 20 GB for an encoder-decoder of 2267 cNodes, long after the answer."""
    program = transformer(2)
    instance = Instance.of(program, "activation")
    limit_bytes = budget_at(program, 0.5).bytes
    events = all_events(useful_pairs(instance))
    with pytest.raises(NotStated):
        compact_model(instance, events, limit_bytes, deadline=monotonic() - 1)
    monkeypatch.setattr(compact, "MOST_ENTRIES", 100)
    with pytest.raises(NotStated):
        compact_model(instance, events, limit_bytes)
    answer = solve_compact(instance, limit_bytes, time_limit_s=60.0, solver=solver)
    assert (answer.status, answer.order) == ("unknown", None)
    assert answer.bound_ns == instance.base_time_ns
    budget = Budget(limit_bytes, "activation")
    holds(program, budget, RkCheckmate().plan(program, budget))  # what walks find


def test_large_graphs_are_refused() -> None:
    program = chain(70)
    result = parse_planner("rk-checkmate{form=thesis}").plan(program, budget_at(program, 0.5))
    assert isinstance(result, NotApplicable)
    assert result.why.code == "FB0409"
    assert str(result.why.message) == (
        "rk-checkmate{form=thesis} plans graphs of at most 120 cNodes, and this one has 141"
    )


def test_contradictory_options_are_all_reported() -> None:
    with pytest.raises(FBError) as caught:
        parse_planner("rk-checkmate{form=thesis, backward=false, saved_bytes=-1}")
    assert [d.code for d in caught.value.diagnostics] == ["FB0404", "FB0404"]


def test_the_same_question_gets_the_same_plan() -> None:
    program = random_dag(40, 9)
    budget = reachable(program, 0.4)
    first = parse_planner("rk-checkmate").plan(program, budget)
    assert first == parse_planner("rk-checkmate").plan(program, budget)
    trace = simulate(program, first.schedule)  # type: ignore[union-attr,arg-type]
    assert trace.activation_peak_bytes <= budget.bytes


# -- Checkmate -------------------------------------------------------------------------------------


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
