"""Operation counts and bytes against what the formulas give by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.programs.hand_built import batch_norm_program, dropout_program
from remat_compile.costs import load_device, roofline
from remat_compile.costs._roofline import flops_of, shapes_of
from remat_compile.ir.expr import Const, mul
from remat_compile.ir.graph import ANode, ANodeKind, Arg, Call, CNode, Graph, Phase, Ref, View
from remat_compile.ir.program import Program
from remat_compile.verifier import cost_assumptions

H200 = load_device("h200")


def node(name: str, kind: ANodeKind, *shape: int, dtype: str = "f32", item: int = 4) -> ANode:
    """A dense aNode."""
    extents = tuple(map(Const, shape))
    return ANode(name, kind, dtype, extents, mul(Const(item), *extents))


def op(name: str, phase: Phase, write: str, operator: str, *args: Arg) -> CNode:
    """A cNode; texts that start with % are references."""
    given = (Ref(a[1:]) if isinstance(a, str) and a.startswith("%") else a for a in args)
    return CNode(name, phase, (write,), Call(operator, tuple(given)))


def test_matrix_product_is_bound_by_memory_or_compute() -> None:
    for m, k, n in ((8, 8, 8), (4096, 4096, 4096)):
        graph = Graph(
            "mm",
            (node("a", "input", m, k), node("b", "param", k, n), node("c", "output", m, n)),
            (),
            (
                op("F1", "fwd", "c", "aten.mm.default", "%a", "%b"),
                CNode("L", "loss", (), Call("loss", (Ref("c"),))),
            ),
        )
        costed = roofline(Program(graph), H200)
        moved = 4 * (m * k + k * n + m * n) / 4.8e12
        compute = 2 * m * k * n / 67e12
        expected = math.ceil(max(moved, compute) * 1e9) + 5000
        assert costed.graph.cnode["F1"].time_ns == expected
        assert costed.graph.loss.time_ns == 0


def test_program_is_marked_and_takes_the_device_as_target() -> None:
    costed = roofline(dropout_program(), H200)
    assert costed.header.costs == "roofline"
    assert costed.target == H200.target
    assert costed.graph.anodes == dropout_program().graph.anodes
    assert all(
        c.workspace == dropout_program().graph.cnode[c.name].workspace for c in costed.graph.cnodes
    )
    (rests_on,) = (a for a in cost_assumptions(costed) if a.key == "costs-roofline")
    assert "nothing was run; operators need no workspace" in rests_on.text


def test_replay_forms_have_a_time_of_their_own() -> None:
    costed = roofline(batch_norm_program(), H200).graph.cnode["F2"]
    assert costed.time_ns is not None
    assert costed.replay is not None
    assert costed.replay.time_ns is not None
    assert costed.replay.time_ns <= costed.time_ns


def test_looking_up_reads_no_more_than_it_returns() -> None:
    table = node("table", "param", 50257, 768)
    ids, rows = node("ids", "input", 4, dtype="i64", item=8), node("rows", "output", 4, 768)
    graph = Graph(
        "embedding",
        (table, ids, rows),
        (),
        (
            op("F1", "fwd", "rows", "aten.embedding.default", "%table", "%ids"),
            CNode("L", "loss", (), Call("loss", (Ref("rows"),))),
        ),
    )
    slow = replace(H200, memory_bytes_per_s=1000, launch_ns=0)
    time_ns = roofline(Program(graph), slow).graph.cnode["F1"].time_ns
    assert time_ns == (4 * 768 * 4 * 2 + 32) * 1_000_000


def test_assumptions_of_an_uncosted_program() -> None:
    assert cost_assumptions(dropout_program())[0].key == "costs-none"


X, W, Y = (2, 8, 10, 10), (16, 4, 3, 3), (2, 16, 8, 8)
Q, K = (2, 4, 32, 16), (2, 4, 48, 16)


@pytest.mark.parametrize(
    ("name", "shapes", "extra"),
    [
        ("aten.mm.default", ((4, 5), (5, 6)), ()),
        ("aten.addmm.default", ((6,), (4, 5), (5, 6)), ()),
        ("aten.bmm.default", ((3, 4, 5), (3, 5, 6)), ()),
        ("aten.baddbmm.default", ((3, 4, 6), (3, 4, 5), (3, 5, 6)), ()),
        (
            "aten.convolution.default",
            (X, W),
            (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2),
        ),
        (
            "aten.convolution.default",
            (Y, (16, 4, 3, 3)),
            (None, [1, 1], [0, 0], [1, 1], True, [0, 0], 2),
        ),
        (
            "aten.convolution_backward.default",
            (Y, X, (16, 8, 3, 3)),
            (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]),
        ),
        (
            "aten.convolution_backward.default",
            (Y, X, (16, 8, 3, 3)),
            (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]),
        ),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", (Q, K, K), ()),
    ],
)
def test_operations_agree_with_pytorchs_counter(
    name: str, shapes: tuple[tuple[int, ...], ...], extra: tuple[Arg, ...]
) -> None:
    namespace, packet, overload = name.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    tensors = [torch.ones(shape) for shape in shapes]
    with FlopCounterMode(display=False) as counter:
        output = operator(*tensors, *extra)
    results = [
        tuple(t.shape)
        for t in (output if isinstance(output, tuple) else (output,))
        if isinstance(t, torch.Tensor)
    ]
    names = [f"t{i}" for i in range(len(shapes))]
    args = tuple(tuple(a) if isinstance(a, list) else a for a in extra)
    call = Call(name, (*map(Ref, names), *args))
    ours = flops_of(call, dict(zip(names, shapes, strict=True)), results, {})
    if "attention" in name:  # PyTorch's counter does not know the CPU's operator
        assert ours == 2 * 2 * 2 * 4 * 32 * 48 * 16
    else:
        assert ours == counter.get_total_flops()


def test_backward_of_a_grouped_convolution_costs_two_forwards() -> None:
    """PyTorch's counter leaves the groups out of the weight's gradient."""
    sides = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 2)
    shapes = {"y": Y, "x": X, "w": W}
    forward = Call("aten.convolution.default", (Ref("x"), Ref("w"), *sides))
    backward = Call(
        "aten.convolution_backward.default",
        (Ref("y"), Ref("x"), Ref("w"), *sides, (True, True, False)),
    )
    assert flops_of(backward, shapes, [X, W], {}) == 2 * flops_of(forward, shapes, [Y], {})


def test_attention_backward_counts_five_products() -> None:
    call = Call(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        (Ref("g"), Ref("q"), Ref("k"), Ref("k")),
    )
    shapes = {"g": Q, "q": Q, "k": K}
    assert flops_of(call, shapes, [Q, K, K], {}) == 5 * 2 * 2 * 4 * 32 * 48 * 16


@pytest.mark.parametrize(
    ("call", "index"),
    [
        ("aten.t.default", None),
        ("aten.transpose.int 0 -1", None),
        ("aten.permute.default (1,0)", None),
        ("aten.view.default (2,-1,4)", None),
        ("aten._unsafe_view.default (24,)", None),
        ("aten.unsqueeze.default -1", None),
        ("aten.slice.Tensor 1 1 9223372036854775807 2", None),
        ("aten.slice.Tensor", None),
        ("aten.select.int 1 -1", None),
        ("aten.split.Tensor 4 1", 1),
        ("aten.split_with_sizes.default (1,3) 0", 1),
        ("aten.unbind.int 1", 2),
        ("aten.as_strided.default (2,2) (1,1)", None),
        ("aten.alias.default", None),
    ],
)
def test_shapes_of_views_agree_with_pytorch(call: str, index: int | None) -> None:
    name, *texts = call.split(" ")
    args = [eval(text) for text in texts]
    namespace, packet, overload = name.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    output = operator(torch.ones(4, 6), *[list(a) if isinstance(a, tuple) else a for a in args])
    expected = tuple((output if index is None else output[index]).shape)
    view = View("v", "x", Call(name, (Ref("x"), *args)), index)
    graph = Graph("views", (node("x", "input", 4, 6),), (view,), ())
    assert shapes_of(graph, {})["v"] == expected


def test_expand_and_squeeze() -> None:
    x = node("x", "input", 1, 6, 1)
    views = (
        View("e", "x", Call("aten.expand.default", (Ref("x"), (5, 3, -1, 4)))),
        View("s", "x", Call("aten.squeeze.dim", (Ref("x"), 0))),
        View("a", "x", Call("aten.squeeze.default", (Ref("x"),))),
        View("d", "x", Call("aten.squeeze.dims", (Ref("x"), (0, 2)))),
        View("u", "x", Call("mylib.window.default", (Ref("x"), 3))),
    )
    shapes = shapes_of(Graph("views", (x,), views, ()), {})
    assert shapes["e"] == (5, 3, 6, 4)
    assert (shapes["s"], shapes["a"], shapes["d"]) == ((6, 1), (6,), (6,))
    assert shapes["u"] == (1, 6, 1)
