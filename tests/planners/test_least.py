"""The fewest bytes: walks that vary what walks decide, and a bound from a search over states."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from helpers.planners.exhaustive_orders import fastest_ns
from helpers.planners.graph_builder import Builder
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer, unet
from helpers.planners.mixed_steps import mixed_chain, mixed_dag
from helpers.slow import default_only
from remat_compile.ir.analysis.liveness import (
    BudgetKind,
    counted_sizes,
    lower_bound_bytes,
    required_cnodes,
)
from remat_compile.ir.analysis.states import States, searched_bound_bytes
from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import LOSS_OP, Call, Ref, Replay
from remat_compile.ir.program import Budget, Program, Result
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.ir.semantics.simulate import Sizes, simulate
from remat_compile.planners import Infeasible, parse_planner
from remat_compile.planners.eviction.lean import may_move, permuted
from remat_compile.planners.eviction.search import Search
from remat_compile.planners.instance import Instance, Order

STEPS = {
    "chain": chain(5, seed=3),
    "residual": residual(3),
    "stochastic": stochastic(3),
    "unet": unet(2),
    "random": random_dag(1, 20),
    "mixed": mixed_dag(1, 6),
    "mixed chain": mixed_chain(2, 6),
}


def least(program: Program, walks: int, seed: int = 0, kind: BudgetKind = "activation") -> Order:
    search = Search(Instance.of(program, kind), 1, inf)
    search.walks, search.seed = walks, seed
    return search.least()


@pytest.mark.parametrize("kind", ["activation", "device"])
@pytest.mark.parametrize("name", default_only(STEPS, ["chain", "unet"]))
def test_walks_give_valid_schedules_of_no_more_bytes(name: str, kind: BudgetKind) -> None:
    program = STEPS[name]
    instance = Instance.of(program, kind)
    order = least(program, 120, kind=kind)
    trace = simulate(program, instance.schedule(order, "dtr"))
    peak = trace.peak_bytes if kind == "device" else trace.activation_peak_bytes
    assert peak == instance.peak(order) <= instance.peak(least(program, 0, kind=kind))
    assert peak >= searched_bound_bytes(program, kind)[0]


def test_walks_reach_fewer_bytes_than_one_rule() -> None:
    """728 is the proven bound."""
    program = STEPS["random"]
    instance = Instance.of(program, "activation")
    assert instance.peak(least(program, 0)) == 744
    assert instance.peak(least(program, 300)) == 736


def test_the_same_seed_gives_the_same_order() -> None:
    program = STEPS["mixed"]
    assert least(program, 150) == least(program, 150)


def test_a_deadline_ends_the_walks() -> None:
    search = Search(Instance.of(STEPS["random"], "activation"), 1, -inf)
    search.walks = 10_000
    assert search.instance.peak(search.least()) <= search.instance.peak(search.instance.capture)
    assert search.late


def test_a_budget_that_only_varied_walks_meet() -> None:
    program = STEPS["random"]
    budget = Budget(736, "activation")
    assert isinstance(parse_planner("dtr").plan(program, budget), Infeasible)
    planned = parse_planner("dtr{walks=300}").plan(program, budget)
    assert planned.schedule is not None
    assert planned.schedule.planner == "dtr{walks=300}"
    assert simulate(program, planned.schedule).activation_peak_bytes <= 736


@pytest.mark.parametrize("name", STEPS)
def test_a_step_in_another_order_is_the_same_step(name: str) -> None:
    program = STEPS[name]
    instance = Instance.of(program, "activation")
    before, after = may_move(instance)
    assert all(c in before[d] for c, others in enumerate(after) for d in others)
    for seed in range(4):
        rng, order = Random(seed), []
        while len(order) < len(before):
            done = set(order)
            ready = [c for c in instance.capture if c not in done and before[c] <= done]
            order.append(rng.choice(ready))
        trace = simulate(program, instance.schedule(order, ""))
        other = permuted(instance, order)
        assert trace.activation_peak_bytes == instance.peak(order) == other.peak(other.capture)
        assert [other.names_C[c] for c in other.capture] == [instance.names_C[c] for c in order]


def states_of(program: Program) -> States:
    """States for activation bytes."""
    sizes = Sizes.of(program)
    counted = counted_sizes(program, "activation", sizes)
    return States(program, counted, sizes.workspace, sizes.replay_workspace)


def searched(program: Program) -> tuple[States, dict[str, int]]:
    """States for activation bytes, and the bound of each cNode that every schedule runs."""
    states = states_of(program)
    required = required_cnodes(program.graph)
    return states, {name: states.least_bytes(name, 3000)[0] for name in required}


@pytest.mark.parametrize("seed", default_only(range(8), [0, 2, 6]))
def test_no_schedule_takes_fewer_bytes_than_states_show(seed: int) -> None:
    """Against all schedules: what is run again, and when, is free there."""
    others = [unet(1)] if seed == 0 else []
    for program in (mixed_dag(seed, 4), mixed_chain(seed, 3), random_dag(seed, 4), *others):
        instance = Instance.of(program, "activation")
        _, bounds = searched(program)
        shown = max(searched_bound_bytes(program, "activation")[0], *bounds.values())
        assert fastest_ns(instance, shown - 1) is None


@pytest.mark.parametrize("layers", [1, 2])
def test_no_schedule_takes_fewer_bytes_than_states_with_tokens_show(layers: int) -> None:
    program = stochastic(layers)
    _, bounds = searched(program)
    assert fastest_ns(Instance.of(program, "activation"), max(bounds.values()) - 1) is None


def test_tokens_wait_for_what_comes_later() -> None:
    """When B0 first runs, dx2, dx1 and the result x2 are alive, and x1 or its token, 16 bytes."""
    b = Builder("dropout")
    b.input("x0", 40)
    b.op(["x0"], [("x1", "act", 100)], token="r1")
    b.op(["x1"], [("x2", "output", 70)], token="r2")
    b.loss(["x2"], [("dx2", 70)])
    b.param("w", 5, "dw")
    b.op(["dx2", "w"], [("dx1", "grad", 100)], phase="bwd")
    b.op(["dx1", "x1"], [("dw", "param_grad", 5)], phase="bwd")
    program = b.program()
    _, bounds = searched(program)
    backward = [c.name for c in program.graph.cnodes if c.phase == "bwd"]
    assert bounds[backward[0]] == 70 + 70 + 100 + 16


def test_states_say_more_than_one_moment() -> None:
    programs = [mixed_dag(seed, 4) for seed in range(8)]
    pairs = [
        (lower_bound_bytes(p, "activation")[0], searched_bound_bytes(p, "activation")[0])
        for p in (*programs, STEPS["mixed"])
    ]
    assert all(one <= more for one, more in pairs)
    assert pairs[-1] == (640, 664)


def test_what_is_made_first_while_the_other_waits() -> None:
    """The example of `states.py`: 500 bytes one way round, 400 the other."""
    b = Builder("ways")
    b.input("x", 8)
    b.op(["x"], [("a", "act", 100)], workspace=300)
    b.op(["x"], [("b", "act", 100)])
    b.op(["a", "b"], [("y", "output", 100)])
    b.loss(["y"], [("t", 10)])
    b.param("w", 5, "dw")
    b.op(["t", "w"], [("dw", "param_grad", 5)], phase="bwd")
    program = b.program()
    states, bounds = searched(program)
    assert states.least_bytes("F2", 100) == (400, 2)
    assert bounds["F0"] == 400
    assert bounds["F1"] == 100
    assert states.least_bytes("F2", 1)[0] == 300
    assert states.least_bytes("F2", 100, known_bytes=450)[0] == 450
    assert lower_bound_bytes(program, "activation")[0] == 400


def test_the_bound_of_a_gradient_counts_the_result_that_the_caller_holds() -> None:
    program = transformer(1)
    states, required = states_of(program), required_cnodes(program.graph)
    backward = next(c for c in program.graph.cnodes if c.phase == "bwd" and c.name in required)
    held = states.bytes_of(states.held)
    own = program.graph.reads(backward)
    sizes = Sizes.of(program).anode
    assert held > 0
    assert states.least_bytes(backward.name, 3000)[0] >= held + sum(
        sizes[a] for a in own if a in states.bit
    )


def made_again_otherwise(b: Builder, reads: str) -> None:
    """The cNode added last has a replay form with other reads."""
    c = b.cnodes[-1]
    form = Replay(c.writes, Call("toy.again.default", (Ref(reads),)), Const(0), 10)
    b.cnodes[-1] = replace(c, replay=form)


def needs_no_loss_again() -> Program:
    """`g` is made with what the loss gives at first, and of `h` again."""
    b = Builder("again")
    b.input("x", 1)
    b.op(["x"], [("h", "act", 1)], workspace=100)
    b.op(["x"], [("y", "output", 50)])
    b.loss(["y"], [("t", 1)])
    b.op(["t"], [("g", "grad", 1)], phase="bwd")
    made_again_otherwise(b, "h")
    b.param("w", 4, "dw")
    b.op(["g", "h"], [("dw", "param_grad", 4)], phase="bwd")
    return b.program()


def needs_the_loss_again() -> Program:
    """`a` is made of `x` at first, and with what the loss gives again; so in a sum of gradients."""
    b = Builder("loss again")
    b.input("x", 1)
    b.op(["x"], [("y", "output", 1)])
    b.loss(["y"], [("t", 1)])
    b.op(["x"], [("a", "grad", 10)], phase="bwd", workspace=50)
    made_again_otherwise(b, "t")
    b.op(["x"], [("b", "grad", 40)], phase="bwd", workspace=25)
    b.op(["a", "b"], [("u", "grad", 4)], phase="bwd")
    b.op(["x"], [("v", "grad", 4)], phase="bwd")
    b.param("w", 4, "dw")
    b.accumulate("u", "v", "dw", "param_grad", 4)
    return b.program()


def keeps_its_tangent(token: str | None = None) -> Program:
    """What the loss gives is the caller's to the end, so no step but the loss has to make it."""
    b = Builder("kept")
    b.input("x", 1)
    b.op(["x"], [("h", "act", 1)], workspace=100, token=token)
    b.op(["x"], [("y", "output", 50)])
    b.op(["y"], [("t", "output", 1)], phase="loss", op=LOSS_OP)
    b.results.append(Result("y", "t"))
    b.param("w", 4, "dw")
    b.op(["t", "h"], [("dw", "param_grad", 4)], phase="bwd")
    return b.program()


@pytest.mark.parametrize(
    ("program", "steps", "peak"),
    [
        (needs_no_loss_again(), "F0 F1 L2 B3 -t -g B3 B4 -g -h", 101),
        (needs_the_loss_again(), "B2 -a B3 F0 L1 B2 -t B4 -a -b B5 B6 -v", 65),
        (keeps_its_tangent(), "F0 F1 L2 B3 -h", 101),
        (keeps_its_tangent("r"), "F0 F1 L2 B3 -h", 101),
    ],
    ids=["no loss again", "loss again", "kept tangent", "kept tangent and a token"],
)
def test_the_loss_is_passed_wherever_a_schedule_may(
    program: Program, steps: str, peak: int
) -> None:
    """What is made before the loss does not wait for the results that the caller holds after it."""
    assert not check_program(program)
    parts = tuple(Free(s[1:]) if s[0] == "-" else Compute(s) for s in steps.split())
    trace = simulate(program, Schedule("s", "by-hand", parts))
    assert trace.activation_peak_bytes == peak
    _, bounds = searched(program)
    assert max(searched_bound_bytes(program, "activation")[0], *bounds.values()) == peak


def test_cut_short_the_search_still_bounds() -> None:
    """More states never show less, and no number of them shows more than there is."""
    program = STEPS["mixed"]
    states = states_of(program)
    peak = Instance.of(program, "activation").peak(least(program, 120))
    for c in program.graph.cnodes:
        if c.name in required_cnodes(program.graph):
            shown = [states.least_bytes(c.name, most)[0] for most in (0, 10, 100, 10_000)]
            assert shown == sorted(shown)
            assert shown[-1] <= peak
