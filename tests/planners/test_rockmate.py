"""`rockmate`: options of blocks, identical blocks, and the chain across them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers.planners.graphs import chain, residual, stochastic, transformer
from helpers.slow import default_only
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Infeasible, Optimal, TimedOut, parse_planner
from remat_compile.planners.chains.answer import order_of
from remat_compile.planners.chains.block_options import Grid, block_instance, option_of
from remat_compile.planners.chains.chain import Chain, chain_of_program, grouped, period_of
from remat_compile.planners.chains.choices import operations
from remat_compile.planners.chains.recurrences.persistent import Persistent
from remat_compile.planners.chains.stages import save_all, stages_of
from remat_compile.planners.instance import Instance
from remat_compile.planners.programs.answer import saved_bytes_of
from remat_compile.planners.solvers import MilpSolver

SMALL = "rockmate{peaks=3, saves=3, processes=1}"


def chain_for(program: Program) -> Chain:
    return chain_of_program(Instance.of(program, "activation"))


def test_a_block_is_a_step_of_its_own() -> None:
    made = chain_for(residual(4))
    block = block_instance(made, 3)
    order = block.capture
    assert [block.phase_C[c] for c in order].count("loss") == 1
    assert block.base_time_ns == sum(
        made.instance.time_C[c] for c in (*made.forward_N[3], *made.backward_N[3])
    )
    option = option_of(made, 3, order)
    assert option == save_all(made, 3)
    saved = sum(block.size_A[block.index_A[made.instance.names_A[a]]] for a in option.kept)
    output = sum(made.instance.size_A[a] for a in made.cross_N[3])
    assert saved_bytes_of(block, order) == saved + output


@pytest.fixture(scope="module")
def options() -> tuple[Chain, list[Grid]]:
    """The options of every block of a chain with random and buffered operators."""
    made = chain_for(stochastic(4))
    grids = [Grid(block_instance(made, i), 4, 4) for i in range(len(made) - 1)]
    with MilpSolver() as solver:
        for grid in grids:
            for peak in grid.rows():
                grid.enter(grid.solve_row(peak, solver, float("inf")))
    return made, grids


def test_options_keep_to_their_budgets(options: tuple[Chain, list[Grid]]) -> None:
    _, grids = options
    assert any(len(grid.orders) > 1 for grid in grids)
    for grid in grids:
        for order in grid.orders:
            assert grid.block.peak(order) <= grid.high
            assert saved_bytes_of(grid.block, order) <= grid.saved
        least = min(saved_bytes_of(grid.block, order) for order in grid.orders)
        assert len(grid.orders) == 1 or least < grid.saved


def test_what_is_predicted_of_options_is_what_runs(options: tuple[Chain, list[Grid]]) -> None:
    made, grids = options
    chosen = [[option_of(made, i, order) for order in g.orders] for i, g in enumerate(grids)]
    stages = stages_of(made, [*chosen, [save_all(made, len(made) - 1)]])
    instance = made.instance
    top = instance.peak(instance.capture) + 100
    table = Persistent(stages, 1, top)
    used = set()
    for memory in range(top, 0, -40):
        if table.time_ns(memory) == float("inf"):
            break
        order = order_of(operations(stages, table.choose, memory))
        assert instance.peak(order) <= memory
        assert instance.time_ns(order) == table.time_ns(memory)
        simulate(instance.program, instance.schedule(order, "x"))
        used.add(instance.time_ns(order))
    assert len(used) > 3


def test_periods_are_found_and_blocks_joined() -> None:
    assert period_of("abcbcbcd") == (1, 7, 2)
    assert period_of("abcdef") == (0, 0, 1)
    assert period_of("xaaaa") == (1, 5, 1)
    made = chain_for(transformer(6))
    joined = grouped(made, 20)
    sizes = [len(cs) for cs in joined.forward_N]
    assert max(sizes) <= 20
    assert sizes.count(17) >= 4
    assert sum(sizes) == sum(len(cs) for cs in made.forward_N)


def test_identical_blocks_are_solved_once() -> None:
    lines: list[str] = []
    for blocks in (5, 9):
        program = residual(blocks)
        instance = Instance.of(program, "activation")
        budget = Budget(instance.peak(instance.capture) // 2, "activation")
        planner = parse_planner("rockmate{peaks=3, saves=3, block_size=3, processes=1}")
        planner.plan(program, budget, progress=lines.append)
    blocks_and_classes = [line.split() for line in lines if "unique" in line]
    (few, *_), (many, *_) = ([int(w) for w in line if w.isdigit()] for line in blocks_and_classes)
    assert few < many
    classes = [line[-4:] for line in blocks_and_classes]
    assert classes[0] == classes[1]


def test_the_same_plan_whatever_the_number_of_processes() -> None:
    program = stochastic(4)
    instance = Instance.of(program, "activation")
    budget = Budget(int(0.6 * instance.peak(instance.capture)), "activation")
    answers = [
        parse_planner(f"rockmate{{peaks=4, saves=3, processes={n}}}").plan(program, budget)
        for n in (1, 3)
    ]
    one, three = answers
    assert isinstance(one, Feasible)
    assert isinstance(three, Feasible)
    assert one.schedule.steps == three.schedule.steps


def test_an_answer_that_the_clock_cut_short_says_so() -> None:
    program = transformer(3)
    instance = Instance.of(program, "activation")
    budget = Budget(int(0.8 * instance.peak(instance.capture)), "activation")
    answer = parse_planner("rockmate").plan(program, budget, time_limit_s=0.8)
    assert isinstance(answer, TimedOut)


@pytest.mark.parametrize("make", [lambda: residual(6), lambda: stochastic(4), lambda: chain(9)])
@pytest.mark.parametrize("share", default_only([0.8, 0.6], [0.6]))
def test_no_slower_than_rotor_by_more_than_rounding(
    make: Callable[[], Program], share: float
) -> None:
    program = make()
    instance = Instance.of(program, "activation")
    budget = Budget(int(share * instance.peak(instance.capture)), "activation")
    ours = parse_planner(SMALL).plan(program, budget)
    rotor = parse_planner("rotor").plan(program, budget)
    assert isinstance(ours, Feasible | Optimal)
    assert simulate(program, ours.schedule).activation_peak_bytes <= budget.bytes
    assert not isinstance(rotor, Infeasible | TimedOut)
    # The same slots hold for both; rockmate's options include those of rotor.
    assert ours.time_ns <= rotor.time_ns


@pytest.mark.slow
def test_a_transformer_at_half_its_activations() -> None:
    program = transformer(3)
    instance = Instance.of(program, "activation")
    budget = Budget(int(0.55 * instance.peak(instance.capture)), "activation")
    ours = parse_planner("rockmate{peaks=3, saves=4}").plan(program, budget, time_limit_s=30)
    rotor = parse_planner("rotor").plan(program, budget)
    assert isinstance(ours, Feasible | TimedOut)
    assert isinstance(rotor, Feasible)
    base = instance.base_time_ns
    assert ours.time_ns - base < 0.75 * (rotor.time_ns - base)


def test_the_least_budget_is_reachable() -> None:
    program = residual(5)
    refused = parse_planner(SMALL).plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    result = parse_planner(SMALL).plan(program, refused.min_budget)
    assert isinstance(result, Feasible | Optimal)
    assert simulate(program, result.schedule).activation_peak_bytes <= refused.min_budget.bytes


def test_no_time_at_all() -> None:
    result = parse_planner(SMALL).plan(chain(20), Budget(700, "activation"), time_limit_s=-1)
    assert isinstance(result, TimedOut)
