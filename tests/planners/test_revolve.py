"""`revolve`: Theorem 1, its closed form, and both ways to plan with it."""

from __future__ import annotations

from itertools import count
from math import comb

import pytest

from helpers.planners.graphs import chain, stochastic
from remat_compile.ir.program import Budget
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Infeasible, Optimal, parse_planner
from remat_compile.planners.chains.recurrences.homogeneous import Adjoint
from remat_compile.planners.instance import Instance


def binomial_forwards(length: int, slots: int) -> int:
    """The closed form: forward steps of an optimal schedule of AdjChain(length, slots).

    With c = slots - 2 checkpoints at once (the input is one of them) and r the least number
    with comb(c + r, c) > length: r * (length + 1) - comb(c + r, c + 1) (Griewank and
    Walther 2000, for length + 1 steps of which the last needs no forward).
    """
    if length == 0:
        return 0
    checkpoints = slots - 2
    repeats = next(r for r in count() if comb(checkpoints + r, checkpoints) > length)
    return repeats * (length + 1) - comb(checkpoints + repeats, checkpoints + 1)


@pytest.mark.parametrize("slots", range(3, 12))
def test_theorem_1_is_the_binomial_closed_form(slots: int) -> None:
    table = Adjoint(40, slots)
    for length in range(41):
        assert table.time(length, slots) == binomial_forwards(length, slots) + length + 1


def test_known_values() -> None:
    # One checkpoint (the input): l (l + 1) / 2; enough of them: each step once.
    assert binomial_forwards(6, 3) == 21
    assert binomial_forwards(6, 8) == 6
    assert Adjoint(6, 2).time(6, 2) == float("inf")
    assert Adjoint(6, 4, u_f=2, u_b=5).time(0, 2) == 5


@pytest.mark.parametrize(("length", "slots"), [(1, 3), (7, 3), (12, 4), (25, 6), (9, 20)])
def test_moves_take_the_time_and_the_slots_of_the_table(length: int, slots: int) -> None:
    table = Adjoint(length, slots)
    moves = table.moves(0, length, slots)
    assert len(moves) == table.time(length, slots)
    assert [i for kind, i in moves if kind == "back"] == list(range(length, -1, -1))
    assert peak_slots(moves) <= slots


def peak_slots(moves: list[tuple[str, int]]) -> int:
    """The most values alive after a step: inputs still wanted, and one gradient."""
    wanted: set[int] = set()
    most = 0
    for kind, i in reversed(moves):
        if kind == "forward":
            most = max(most, len(wanted) + 1)
            wanted.discard(i + 1)
        wanted.add(i)
        most = max(most, len(wanted) + 1)
    assert wanted == {0}
    return most


def test_each_block_runs_again_just_before_its_backward() -> None:
    program = chain(8)
    result = parse_planner("revolve").plan(program, None)
    assert isinstance(result, Feasible | Optimal)
    runs = simulate(program, result.schedule).executions
    forward = [c.name for c in program.graph.in_phase("fwd")]
    # The first layer reads only what the caller holds, so that its backward needs the
    # input of the second and nothing else.
    assert [runs[name] for name in forward] == [1, *([2] * 6), 1]


@pytest.mark.parametrize("share", [0.9, 0.7, 0.6])
def test_both_costs_agree_on_equal_layers(share: float) -> None:
    program = chain(12)
    instance = Instance.of(program, "activation")
    budget = Budget(int(share * instance.peak(instance.capture)), "activation")
    measured = parse_planner("revolve").plan(program, budget)
    equal = parse_planner("revolve{costs=equal}").plan(program, budget)
    assert isinstance(measured, Feasible | Optimal)
    assert isinstance(equal, Feasible | Optimal)
    assert measured.time_ns <= equal.time_ns <= 1.1 * measured.time_ns


@pytest.mark.parametrize("planner", ["revolve", "revolve{costs=equal}"])
def test_random_and_buffered_operators(planner: str) -> None:
    program = stochastic(5)
    refused = parse_planner(planner).plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    result = parse_planner(planner).plan(program, refused.min_budget)
    assert isinstance(result, Feasible | Optimal)
    simulate(program, result.schedule)
