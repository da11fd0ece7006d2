"""`rotor` and `rotor-floating`: optimal on chains, and the counter-example of S 2.3.1."""

from __future__ import annotations

import random
from itertools import count
from math import comb

import pytest

from helpers.planners.exhaustive_chains import Mode, ThesisChain, counter_example, least_time
from helpers.planners.graphs import Builder, chain, residual, stochastic, transformer
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
from remat_compile.planners.chains.answer import Slots, chain_for
from remat_compile.planners.chains.choices import operations, slot_bytes
from remat_compile.planners.chains.recurrences.floating import Floating
from remat_compile.planners.chains.recurrences.homogeneous import Adjoint
from remat_compile.planners.chains.recurrences.persistent import Persistent
from remat_compile.planners.chains.rotor import Rotor
from remat_compile.planners.chains.stages import save_all, stages_of
from remat_compile.planners.instance import Instance

INFINITE = float("inf")


@pytest.mark.parametrize("n", [5, 6, 9, 20])
def test_the_counter_example_to_persistence(n: int) -> None:
    stages = counter_example(n).stages()
    assert Persistent(stages, 1, 15).time_ns(15) == 3 * n - 2
    # F^all cannot give up its input, so Theorem 5 does not reach 2n as the thesis says.
    assert Floating(stages, 1, 15).time_ns(15) == 2 * n + 2


@pytest.mark.parametrize(
    ("mode", "time_ns"), [("persistent", 3 * 5 - 2), ("any", 2 * 5 + 2), ("dropping", 2 * 5)]
)
def test_exhaustive_search_on_the_counter_example(mode: Mode, time_ns: int) -> None:
    assert least_time(counter_example(5), 15, mode) == time_ns


def random_chain(rng: random.Random) -> ThesisChain:
    n = rng.randint(2, 4)
    a = [rng.randint(0, 4) for _ in range(n + 1)]

    def each(low: int, high: int) -> list[int]:
        return [rng.randint(low, high) for _ in range(n)]

    a_bar = [x + rng.randint(0, 4) for x in a]
    return ThesisChain(a, a_bar, a, each(0, 5), each(0, 5), each(0, 2), each(0, 2))


def test_optimal_among_persistent_schedules() -> None:
    rng = random.Random(3)
    finite = 0
    for _ in range(30):
        made = random_chain(rng)
        table = Persistent(made.stages(), 1, 24)
        for memory in range(made.a[0], 25, 3):
            time_ns = table.time_ns(memory - made.a[0])
            assert time_ns == least_time(made, memory, "persistent")
            finite += time_ns < INFINITE
    assert finite > 50


def test_floating_lies_between_exhaustive_search_and_the_persistent_optimum() -> None:
    rng = random.Random(4)
    equal = total = 0
    for _ in range(30):
        made = random_chain(rng)
        stages = made.stages()
        fixed, floating = Persistent(stages, 1, 24), Floating(stages, 1, 24)
        for memory in range(made.a[0], 25, 3):
            time_ns = floating.time_ns(memory - made.a[0])
            bound = least_time(made, memory, "any")
            assert bound <= time_ns <= fixed.time_ns(memory - made.a[0])
            equal += time_ns == bound
            total += 1
    assert equal >= 0.99 * total


def test_tables_give_back_schedules_of_their_time() -> None:
    made = counter_example(6)
    stages = made.stages()
    table = Persistent(stages, 1, 15)
    for steps, time_ns in (
        (operations(stages, table.choose, 15), 16),
        (Floating(stages, 1, 15).operations(15), 14),
    ):
        forward = sum(made.u_f[s.stage] for s in steps if s.kind != "back")
        assert forward == time_ns
        assert [s.stage for s in steps if s.kind == "back"] == list(range(8, -1, -1))


def test_slots_are_exact_where_the_sizes_allow() -> None:
    stages = counter_example(6).stages()
    assert slot_bytes(stages, 15, 500) == 1
    assert slot_bytes(stages, 15, 4) == 4


@pytest.mark.parametrize("program", [chain(14, seed=2), residual(6), stochastic(4)])
def test_more_slots_are_never_worse(program: Program) -> None:
    instance = Instance.of(program, "activation")
    budget = Budget(instance.peak(instance.capture) * 6 // 10, "activation")
    times = []
    for slots in (5, 50, 5000):
        result = Rotor(slots).plan(program, budget)
        assert isinstance(result, Feasible | Optimal)
        times.append(result.time_ns)
        assert simulate(program, result.schedule).activation_peak_bytes <= budget.bytes
    assert times[2] <= times[1] <= times[0]


@pytest.mark.parametrize("share", [0.75, 0.5, 0.35])
def test_rotor_is_no_slower_than_fixed_segments_and_revolve(share: float) -> None:
    program = transformer(4)
    instance = Instance.of(program, "activation")
    budget = Budget(int(share * instance.peak(instance.capture)), "activation")
    times = {}
    for name in ("rotor", "rotor-floating", "revolve"):
        result = parse_planner(name).plan(program, budget)
        times[name] = result.time_ns if not isinstance(result, Infeasible) else INFINITE
    assert times["rotor"] < INFINITE
    assert times["rotor-floating"] <= times["rotor"] <= times["revolve"]


@pytest.mark.parametrize("planner", ["rotor", "rotor-floating", "revolve"])
def test_without_a_budget(planner: str) -> None:
    result = parse_planner(planner).plan(chain(6), None)
    if planner == "revolve":
        assert isinstance(result, Feasible | Optimal)  # it never keeps what a block makes
    else:
        assert isinstance(result, Optimal)


def ladder(rungs: int) -> Program:
    """Two values cross every cut of the forward."""
    b = Builder("ladder")
    b.input("u0", 8)
    b.param("w", 8, "dw")
    b.op(["u0", "w"], [("u1", "act", 8), ("v1", "act", 8)])
    for i in range(1, rungs):
        b.op([f"u{i}", f"v{i}"], [(f"u{i + 1}", "act", 8)])
        b.op([f"u{i}", f"v{i}"], [(f"v{i + 1}", "act", 8)])
    b.op([f"u{rungs}", f"v{rungs}"], [("y", "output", 8)])
    b.loss(["y"], [("dy", 8)])
    reads = ["dy", *(f"{x}{i}" for x in "uv" for i in range(1, rungs + 1))]
    b.op(reads, [("dw", "param_grad", 8)], phase="bwd")
    return b.program()


@pytest.mark.parametrize("planner", ["rotor", "rotor-floating", "revolve", "rockmate"])
def test_a_graph_that_is_no_chain_is_refused(planner: str) -> None:
    program = ladder(5)
    result = parse_planner(planner).plan(program, Budget(1, "activation"))
    assert isinstance(result, NotApplicable)
    assert result.why.code == "FB0409"
    assert result.why.message.startswith(f"{planner} plans chains of blocks")
    assert "dtr" in (result.why.hint or "")


@pytest.mark.parametrize("planner", ["rotor", "rotor-floating", "revolve"])
def test_no_time_at_all(planner: str) -> None:
    result = parse_planner(planner).plan(chain(20), Budget(700, "activation"), time_limit_s=-1)
    assert isinstance(result, TimedOut)


def test_a_long_chain_is_shortened() -> None:
    program = chain(1500, seed=1)
    instance = Instance.of(program, "activation")
    made = chain_for(instance)
    assert 100 < len(made) <= 1000
    assert sum(len(cs) for cs in made.forward_N) == 1501
    stages = stages_of(made, [[save_all(made, i)] for i in range(len(made))])
    scale = Slots.of(stages, instance.peak(instance.capture), 500)
    assert 20 <= scale.fits < 500


# -- `revolve` -------------------------------------------------------------------------------------


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
