"""Floors, separators and identical blocks."""

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
from remat_compile.ir.analysis.blocks import fingerprint
from remat_compile.ir.analysis.liveness import (
    BudgetKind,
    floor_bytes,
    lower_bound_bytes,
    required_cnodes,
)
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.analysis.separators import Separator, chain_of, globals_of, separators
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners.chains.answer import Slots, order_of
from remat_compile.planners.chains.chain import (
    Chain,
    chain_from_stages,
    chain_of_program,
    fingerprints,
)
from remat_compile.planners.chains.choices import operations
from remat_compile.planners.chains.recurrences.persistent import Least, Persistent
from remat_compile.planners.chains.stages import Stage, save_all, stages_of
from remat_compile.planners.instance import Instance, Order


def test_the_floor_is_the_largest_working_set() -> None:
    program = chain(3, 100)
    # x1, x2 and d2 are read, d1 and dw1 written; the caller holds x0 and three weights.
    held = 100 + 3 * 20
    assert floor_bytes(program, "device") == (held + 100 + 100 + 100 + 100 + 20, "B4")
    assert floor_bytes(program, "activation") == (400, "B4")


def test_what_cannot_be_made_again_raises_the_bound() -> None:
    b = Builder("held")
    b.param("w", 10, "dw")
    b.op(["w"], [("y", "output", 50)])
    b.loss(["y"], [("t", 50)])
    b.op(["t"], [("g", "grad", 30)], phase="bwd")
    b.op(["w"], [("unrelated", "grad", 500)], phase="bwd")
    b.op(["g"], [("h", "grad", 200)], phase="bwd")
    b.op(["h", "t"], [("dw", "param_grad", 10)], phase="bwd")
    program = b.program()
    # `unrelated` is needed by nobody; at B4 the tangent is still to be read by B5, and y is the
    # caller's since the loss.
    assert floor_bytes(program, "activation") == (250, "B5")
    assert lower_bound_bytes(program, "activation") == (330, "B4")
    assert "B3" not in required_cnodes(program.graph)


@settings(max_examples=60)
@given(programs())
def test_no_schedule_is_below_the_floor(program: Program) -> None:
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    trace = simulate(program, Schedule("plan", "", steps))
    for kind, peak in (
        ("device", trace.peak_bytes),
        ("activation", trace.activation_peak_bytes),
    ):
        floor = floor_bytes(program, kind)[0]  # type: ignore[arg-type]
        assert floor <= lower_bound_bytes(program, kind)[0] <= peak  # type: ignore[arg-type]


@settings(max_examples=60)
@given(programs())
def test_the_instance_counts_as_the_simulator(program: Program) -> None:
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    trace = simulate(program, Schedule("plan", "", steps))
    device = Instance.of(program, "device")
    activation = Instance.of(program, "activation")
    assert device.peak(device.capture) == trace.peak_bytes
    assert activation.peak(activation.capture) == trace.activation_peak_bytes
    assert device.time_ns(device.capture) == trace.time_ns


def test_every_layer_of_a_chain_is_a_separator() -> None:
    assert separators(chain(4)) == tuple(Separator(f"x{i}", i) for i in (1, 2, 3))
    assert [len(block) for block in chain_of(chain(4))] == [1, 1, 1, 1]


def test_skips_leave_only_the_residual_stream() -> None:
    names = [s.anode for s in separators(residual(3))]
    # The first block reads the caller's input beside its own values: all of it separates.
    assert names == ["h0", "g0", "x1", "x2"]
    assert [s.anode for s in separators(unet(3))] == ["s0"]


@settings(max_examples=60)
@given(st.integers(0, 5000))
def test_removing_a_separator_cuts_the_forward(seed: int) -> None:
    program = random_dag(seed, 10)
    graph = program.graph
    forward = list(graph.in_phase("fwd"))
    for s in separators(program):
        before = {name for c in forward[: s.position] for name in c.results}
        after = {name for c in forward[s.position :] for name in graph.reads(c)}
        assert before & after <= {s.anode}


def with_mask(blocks: int) -> Program:
    """A residual chain whose blocks all read a mask that is computed without parameters."""
    b = Builder("masked")
    b.input("ids", 8)
    b.op(["ids"], [("mask", "act", 8)])
    b.param("e", 8, "de")
    b.op(["ids", "e"], [("x0", "act", 8)])
    for i in range(blocks):
        b.param(f"w{i}", 8, f"dw{i}")
        b.op([f"x{i}", f"w{i}", "mask"], [(f"h{i}", "act", 32)])
        b.op([f"h{i}", f"x{i}"], [(f"x{i + 1}", "act", 8)])
    b.op([f"x{blocks}"], [("y", "output", 8)])
    b.loss(["y"], [("dy", 8)])
    b.op(["dy"], [(f"d{blocks}", "grad", 8)], phase="bwd", of=[b.cnodes[-2].name])
    for i in reversed(range(blocks)):
        of = [b.cnodes[2 + 2 * i].name]
        b.op(
            [f"d{i + 1}", f"h{i}", "mask"],
            [(f"dw{i}", "param_grad", 8), (f"c{i}", "grad", 8)],
            phase="bwd",
            of=of,
        )
        b.accumulate(f"d{i + 1}", f"c{i}", f"d{i}", "grad", 8)
    b.op(["d0"], [("de", "param_grad", 8)], phase="bwd", of=["F1"])
    return b.program()


def test_globals_do_not_break_a_chain() -> None:
    program = with_mask(3)
    assert globals_of(program) == {"mask"}
    assert [s.anode for s in separators(program)] == ["x0", "x1", "x2", "x3"]


def classes(chain: Chain) -> list[tuple[tuple[str, ...], ...]]:
    """The forward cNodes of stages with the same fingerprint, in order."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for kind, cnodes in zip(fingerprints(chain), chain.forward_N, strict=False):
        groups.setdefault(kind, []).append(tuple(chain.instance.names_C[c] for c in cnodes))
    return [tuple(group) for group in groups.values()]


def test_identical_stages_have_one_fingerprint() -> None:
    stages = chain_of_program(Instance.of(with_mask(4), "activation"))
    assert len(fingerprints(stages)) == len(stages) - 1
    largest = max(classes(stages), key=len)
    # All four have one forward; the backward of the first also makes the gradient of `e`.
    assert largest == (("F4", "F5"), ("F6", "F7"), ("F8", "F9"))


def test_where_the_backward_begins_counts() -> None:
    graph = with_mask(1).graph
    assert fingerprint(graph, ["F2", "F3"], []) != fingerprint(graph, ["F2"], ["F3"])
    assert fingerprint(graph, ["F2"]) != fingerprint(graph, ["F3"])


def test_inner_blocks_of_a_transformer_are_identical() -> None:
    program = transformer(5)
    instance = Instance.of(program, "activation")
    forward = [c for c in instance.capture if instance.phase_C[c] == "fwd"]
    assert len(forward) == 85
    blocks = [forward[17 * i : 17 * (i + 1)] for i in range(5)]
    # The first reads the caller's input, the last writes the model's output.
    assert sorted(map(len, classes(chain_from_stages(instance, blocks)))) == [1, 1, 3]


# -- Programs as chains of stages ------------------------------------------------------------------


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
