"""The reference executor against autograd, and its memory against the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.programs.hand_built import (
    batch_norm_program,
    batch_norm_values,
    dropout_program,
    dropout_values,
    dynamic_dropout_program,
)
from remat_compile.backends.torch import measure_peak
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import ANode, Call, CNode, Ref, View
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.operators.executor import Loss, execute

TANGENT = torch.linspace(-1, 1, 64).reshape(4, 16)
REPLAYED = ["F1", "F2", "F3", "F4", "L", "B4", "F3", "B4w", "B3", "F1", "F2", "B3w"]
REPLAYED += ["F1", "F2", "B2", "B1w", "A1"]


def given(tangents: Mapping[str, Tensor]) -> Loss:
    return lambda results: {name: value.clone() for name, value in tangents.items()}


def eager_dropout(values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    x = values["x"]
    w1, w2 = (values[name].clone().requires_grad_() for name in ("w1", "w2"))
    z = torch.nn.functional.dropout(x @ w1, 0.5, training=True) @ w2 @ w1
    g1, g2 = torch.autograd.grad(z, (w1, w2), TANGENT)
    return z.detach(), g1, g2


@pytest.mark.parametrize("order", [None, REPLAYED], ids=["captured", "replayed"])
def test_dropout_replay_and_accumulation_are_bit_equal(order: list[str] | None) -> None:
    program, values = dropout_program(), dropout_values()
    steps = frees_after_last_use(program.graph, order or capture_order(program.graph))
    torch.manual_seed(7)
    z, g1, g2 = eager_dropout(values)
    after_eager = torch.get_rng_state()
    torch.manual_seed(7)
    run = execute(program, steps, values, given({"dz": TANGENT}))
    assert torch.equal(run.results[0], z)
    assert torch.equal(run.param_grads["w1"], g1)
    assert torch.equal(run.param_grads["w2"], g2)
    assert torch.equal(torch.get_rng_state(), after_eager)
    assert set(run.live) == {"z", "gw1", "gw2"}


def test_frees_are_real() -> None:
    program, values = dropout_program(), dropout_values()
    for order in (capture_order(program.graph), REPLAYED):
        steps = frees_after_last_use(program.graph, order)
        _, use = measure_peak(lambda steps=steps: execute(program, steps, values))  # type: ignore[misc]
        trace = simulate(program, Schedule("s", "", steps))
        kept = sum(4 * n for n in (4 * 16, 8 * 16, 16 * 8))
        assert use.end_bytes_over_entry == kept == trace.after[-1] - 4 * (4 * 8 + 2 * 8 * 16)


def test_batch_norm_replay_updates_buffers_once() -> None:
    program = batch_norm_program()
    tangent = torch.linspace(-1, 1, 300).reshape(4, 3, 5, 5)
    values = batch_norm_values()
    mine = {name: value.clone() for name, value in values.items()}
    x, w, b = (values[name].requires_grad_() for name in ("x", "w", "bias"))
    o = torch.nn.functional.batch_norm(x * 1.5, values["rm"], values["rv"], w, b, True)
    expected = torch.autograd.grad(o, (x, w, b), tangent)
    steps = frees_after_last_use(program.graph, ["F1", "F2", "L", "F1", "F2", "B2", "B1"])
    run = execute(program, steps, mine, given({"do": tangent}))
    assert torch.equal(run.results[0], o)
    assert torch.equal(run.input_grads[0], expected[0])
    assert torch.equal(run.param_grads["w"], expected[1])
    assert torch.equal(run.param_grads["bias"], expected[2])
    assert torch.equal(mine["rm"], values["rm"])
    assert torch.equal(mine["rv"], values["rv"])


def test_without_write_back_buffers_stay() -> None:
    program, values = batch_norm_program(), batch_norm_values()
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    execute(program, steps, values, write_back=False)
    assert torch.equal(values["rm"], torch.zeros(3))


def test_symbols_are_bound() -> None:
    program = dynamic_dropout_program(1, 8)
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    values = {**dropout_values(), "x": torch.ones(6, 8)}
    assert execute(program, steps, values, env={"b": 6}).results[0].shape == (6, 16)


def test_invalid_schedule_is_refused_as_by_the_simulator() -> None:
    program, values = dropout_program(), dropout_values()
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    broken = (*steps[:1], Free("h"), *steps[1:])
    with pytest.raises(FBError) as caught:
        execute(program, broken, values)
    assert caught.value.diagnostics[0].code == "FB0301"


def test_values_that_do_not_fit_are_all_named() -> None:
    program, values = dropout_program(), dropout_values()
    del values["x"]
    values["w1"] = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(FBError) as caught:
        execute(program, (), values)
    assert [d.code for d in caught.value.diagnostics] == ["FB0905", "FB0905"]


def test_missing_tangent_is_refused() -> None:
    program, values = dropout_program(), dropout_values()
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    with pytest.raises(FBError, match="gave no tangent for %dz") as caught:
        execute(program, steps, values, lambda results: {})
    assert caught.value.diagnostics[0].code == "FB0905"


def run_with(program: Program, cnode: CNode, *views: View) -> None:
    graph = program.graph
    extra = tuple(ANode(r, "output", "f32", (), Const(0)) for r in cnode.results)
    graph = replace(
        graph,
        anodes=(*graph.anodes, *extra),
        views=(*graph.views, *views),
        cnodes=(*graph.cnodes, cnode),
    )
    program = replace(program, graph=graph)
    steps = frees_after_last_use(graph, capture_order(graph))
    assert isinstance(steps[0], Compute)
    execute(program, steps, dropout_values())


SCALAR = "aten._local_scalar_dense.default"


@pytest.mark.parametrize(
    ("cnode", "code"),
    [
        (CNode("X", "bwd", ("q",), Call("aten.t.default", (Ref("w1"),))), "FB0904"),
        (CNode("X", "bwd", ("q", "p"), Call("aten.mul.Tensor", (Ref("w1"), 2))), "FB0944"),
        (
            CNode("X", "bwd", ("q",), Call("aten._local_scalar_dense.default", (Ref("one"),))),
            "FB0942",
        ),
    ],
    ids=["aliases an input", "too few results", "not a tensor"],
)
def test_operators_that_do_not_do_as_declared_are_refused(cnode: CNode, code: str) -> None:
    """By their schemas before anything is run (FB0942, FB0944), else by what they did."""
    one = View("one", "w1", Call("aten.as_strided.default", (Ref("w1"), (), ())))
    with pytest.raises(FBError) as caught:
        run_with(dropout_program(), cnode, one)
    assert caught.value.diagnostics[0].code == code


def test_views_that_allocate_are_refused() -> None:
    view = View("copy", "w1", Call("aten.clone.default", (Ref("w1"),)))
    cnode = CNode("X", "bwd", ("q",), Call("aten.mul.Tensor", (Ref("copy"), 2)))
    with pytest.raises(FBError, match="storage of its own") as caught:
        run_with(dropout_program(), cnode, view)
    assert caught.value.diagnostics[0].code == "FB0904"


@torch.library.custom_op("remat_compile_tests::laid_out", mutates_args=())
def laid_out(x: Tensor) -> Tensor:
    return (x * 2).contiguous()


@laid_out.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


laid_out.register_autograd(lambda _, gradient: gradient * 2)


class Mistaken(nn.Module):
    """A library's operator says on tensors without numbers that it keeps the strides of its
    transposed operand, so that the way back is a view; its kernel gives a contiguous result."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(laid_out(x.transpose(1, 2)).transpose(1, 2))
        return y


@pytest.mark.parametrize("options", [{}, {"costs": "roofline", "device": "cpu"}])
def test_a_result_that_cannot_be_viewed_as_captured_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FBError, match=r"call contiguous\(\)") as caught:
        remat_compile.compile(Mistaken(), (torch.randn(2, 3, 8),), **options)
    assert caught.value.diagnostics[0].code == "FB0904"
