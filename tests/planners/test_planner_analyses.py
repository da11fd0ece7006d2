"""Floors, topological order, separators and identical blocks."""

from __future__ import annotations

from dataclasses import replace

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
from remat_compile.ir.analysis.blocks import blocks_of, fingerprint, identical_blocks
from remat_compile.ir.analysis.liveness import (
    floor_bytes,
    lower_bound_bytes,
    required_cnodes,
    topological_order,
)
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.analysis.separators import Separator, chain_of, globals_of, separators
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners.instance import Instance


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
    # `unrelated` is needed by nobody; at B4 the tangent is still to be read by B5.
    assert floor_bytes(program, "activation") == (250, "B5")
    assert lower_bound_bytes(program, "activation") == (280, "B4")
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


@pytest.mark.parametrize("make", [chain, residual, unet, stochastic])
def test_the_order_of_capture_is_topological(make: type) -> None:
    graph = make().graph
    assert topological_order(graph) == capture_order(graph)


def test_a_shuffled_graph_is_sorted_again() -> None:
    graph = residual().graph
    shuffled = replace(graph, cnodes=tuple(reversed(graph.cnodes)))
    order = topological_order(shuffled)
    place = {name: i for i, name in enumerate(order)}
    assert len(order) == len(graph.cnodes)
    for c in graph.cnodes:
        for name in graph.reads(c):
            if name in graph.writer:
                assert place[graph.writer[name].name] < place[c.name]
        if c.is_accumulate:
            for reader in graph.readers[graph.reads(c)[0]]:
                assert place[reader.name] <= place[c.name]


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


def test_identical_blocks_are_found_with_a_renaming() -> None:
    program = with_mask(4)
    blocks = blocks_of(program)
    assert sum(len(b.cnodes) for b in blocks) == len(program.graph.cnodes) - 1
    classes = identical_blocks(program, blocks)
    largest = max(classes, key=lambda c: len(c.blocks))
    # The first of the four mentions the mask like the others; all four are equal.
    assert [b.forward for b in largest.blocks] == [
        ("F2", "F3"),
        ("F4", "F5"),
        ("F6", "F7"),
        ("F8", "F9"),
    ]
    assert largest.renamings[2]["h0"] == "h2"
    assert largest.renamings[2]["mask"] == "mask"
    assert len({fingerprint(program, b) for b in largest.blocks}) == 1
    assert len({fingerprint(program, b) for b in blocks}) == len(classes)


def test_inner_blocks_of_a_transformer_are_identical() -> None:
    program = transformer(5)
    chain_blocks = chain_of(program)
    whole = [
        tuple(c.name for c in list(program.graph.in_phase("fwd"))[17 * i : 17 * (i + 1)])
        for i in range(5)
    ]
    assert sum(map(len, chain_blocks)) == 85
    sizes = [len(c.blocks) for c in identical_blocks(program, blocks_of(program, whole))]
    # The first reads the caller's input, the last writes the model's output.
    assert sorted(sizes) == [1, 1, 3]
