"""Programs as chains of stages: what the dynamic programs predict is what the simulator finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.graphs import (
    Builder,
    chain,
    random_dag,
    residual,
    stochastic,
    transformer,
    unet,
)
from helpers.programs.strategies import programs
from remat_compile.ir.analysis.liveness import BudgetKind
from remat_compile.ir.program import Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners.chains.answer import Slots, order_of
from remat_compile.planners.chains.chain import Chain, chain_of_program
from remat_compile.planners.chains.choices import operations
from remat_compile.planners.chains.recurrences.persistent import Least, Persistent
from remat_compile.planners.chains.stages import Stage, save_all, stages_of
from remat_compile.planners.instance import Instance, Order

KINDS: tuple[BudgetKind, ...] = ("device", "activation")


def reduced(program: Program, kind: BudgetKind) -> tuple[Chain, list[Stage]]:
    made = chain_of_program(Instance.of(program, kind))
    return made, stages_of(made, [[save_all(made, i)] for i in range(len(made))])


def predictions(
    instance: Instance, stages: list[Stage], slots: int
) -> Iterator[tuple[Order, float, int]]:
    """Orders with their predicted time and peak, from much memory to little."""
    room = instance.peak(instance.capture) - instance.base_bytes
    scale = Slots.of(stages, room, slots)
    set_aside = sum(s.token_bytes for s in stages) - sum(s.token_bytes for s in scale.stages)
    table = Persistent(scale.stages, scale.slot, scale.top)
    for memory in range(scale.top, -1, -max(1, scale.top // 12)):
        time_ns = table.time_ns(memory)
        if time_ns == float("inf"):
            return
        order = order_of(operations(scale.stages, table.choose, memory))
        yield order, time_ns, memory * scale.slot + set_aside + instance.base_bytes


def check_predictions(program: Program, kind: BudgetKind) -> None:
    made, stages = reduced(program, kind)
    instance = made.instance
    predicted = [*predictions(instance, stages, 300)]
    for order, time_ns, peak in predicted:
        assert instance.time_ns(order) == time_ns
        assert instance.peak(order) <= peak
        simulate(program, instance.schedule(order, "x"))
    least = Least(stages)
    smallest = order_of(operations(stages, least.choose, 0))
    assert instance.peak(smallest) <= least.peak_bytes + instance.base_bytes
    simulate(program, instance.schedule(smallest, "x"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [chain, residual, unet, stochastic, lambda: transformer(2)])
def test_predicted_times_are_exact_and_peaks_are_bounds(
    make: Callable[[], Program], kind: BudgetKind
) -> None:
    check_predictions(make(), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [chain, residual, stochastic, lambda: transformer(2)])
def test_the_least_memory_is_predicted_to_the_byte(
    make: Callable[[], Program], kind: BudgetKind
) -> None:
    made, stages = reduced(make(), kind)
    least = Least(stages)
    order = order_of(operations(stages, least.choose, 0))
    assert made.instance.peak(order) == least.peak_bytes + made.instance.base_bytes


@settings(max_examples=40)
@given(programs(), st.sampled_from(KINDS))
def test_generated_programs(program: Program, kind: BudgetKind) -> None:
    check_predictions(program, kind)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 18), st.sampled_from(KINDS))
def test_random_graphs(seed: int, nodes: int, kind: BudgetKind) -> None:
    check_predictions(random_dag(seed, nodes), kind)


def test_every_cnode_belongs_to_one_stage() -> None:
    for program in (residual(), stochastic(), transformer(2), unet()):
        made, _ = reduced(program, "device")
        members = [c for i in range(len(made)) for c in (*made.forward_N[i], *made.backward_N[i])]
        assert sorted(members) == made.instance.capture
        assert made.forward_N[-1] == (made.instance.loss,)


def masked(blocks: int) -> Program:
    """A chain whose blocks all read a mask that no gradient flows through."""
    b = Builder("masked")
    b.input("ids", 8)
    b.op(["ids"], [("mask", "act", 40)])
    b.param("e", 8, "de")
    b.op(["ids", "e"], [("x0", "act", 8)])
    for i in range(blocks):
        b.param(f"w{i}", 8, f"dw{i}")
        b.op([f"x{i}", f"w{i}", "mask"], [(f"h{i}", "act", 64)])
        b.op([f"h{i}", f"x{i}"], [(f"x{i + 1}", "output" if i == blocks - 1 else "act", 8)])
    b.loss([f"x{blocks}"], [(f"d{blocks}", 8)])
    for i in reversed(range(blocks)):
        writes = [(f"dw{i}", "param_grad", 8), (f"d{i}", "grad", 8)]
        b.op([f"d{i + 1}", f"h{i}", "mask"], writes, phase="bwd")  # type: ignore[arg-type]
    b.op(["d0"], [("de", "param_grad", 8)], phase="bwd")
    return b.program()


def test_globals_are_made_once_and_do_not_break_the_chain() -> None:
    program = masked(6)
    made, stages = reduced(program, "activation")
    # Each block's inner value separates too, but its output reads the block's input as well.
    assert [len(cs) for cs in made.forward_N] == [2, *([2] * 6), 1]
    mask = made.instance.index_A["mask"]
    assert mask in made.permanent
    least = Least(stages)
    order = order_of(operations(stages, least.choose, 0))
    trace = simulate(program, made.instance.schedule(order, "x"))
    assert trace.executions["F0"] == 1
    assert max(trace.executions.values()) > 1


def test_stages_that_the_backward_ties_together_are_joined() -> None:
    b = Builder("tied")
    b.input("x0", 8)
    b.param("w", 4, "dw")
    for i in range(4):
        b.op([f"x{i}", "w"], [(f"x{i + 1}", "output" if i == 3 else "act", 8)])
    b.loss(["x4"], [("d4", 8)])
    b.op(["d4", "x3"], [("d3", "grad", 8)], phase="bwd")
    b.op(["d3", "x1", "x3"], [("d1", "grad", 8)], phase="bwd")
    b.op(["d1", "w"], [("dw", "param_grad", 4)], phase="bwd")
    made, _ = reduced(b.program(), "activation")
    # x3 is at hand in the last layer's backward and in that of the layer before it; the
    # second backward also wants x1, so layers 2 and 3 are one stage.
    assert [len(cs) for cs in made.forward_N] == [1, 2, 1, 1]
    check_predictions(b.program(), "activation")


def test_a_replay_before_its_own_backward_leaves_out_what_only_the_output_needs() -> None:
    made, stages = reduced(transformer(3), "activation")
    option = stages[-3].options[0]
    assert len(option.last.run) < len(option.again.run) <= len(option.first.run)
    assert option.last.time_ns < option.again.time_ns
    assert made.cross_N[len(stages) - 3]
