"""Operators that block real models, against PyTorch's modules or the formula written out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import Tensor, nn

from helpers.onnx_files import refusal, write
from remat_compile.capture.onnx import OnnxModel, build_module
from remat_compile.capture.onnx.exporter.record import STRAIGHT_THROUGH

ORT = "com.microsoft"


def weights_of(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def build(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, Any],
    weights: dict[str, Any],
    *,
    notes: dict[str, str] | None = None,
) -> OnnxModel:
    file = write(path / "m.onnx", nodes, inputs, weights)
    model = onnx.load(file)
    for key, value in (notes or {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, file)
    return build_module(file)


def gradients(result: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    seed = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad([result], parameters, [seed]))


ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}
"""PyTorch's gates in ONNX's order."""


def onnx_gates(tensor: Tensor, op: str) -> Tensor:
    return torch.cat([tensor.chunk(len(ORDER[op]))[i] for i in ORDER[op]])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_pytorchs(op: str, both: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer: nn.RNNBase = getattr(nn, op)(4, 3, bidirectional=both)
    ends = ("", "_reverse") if both else ("",)

    def stacked(kind: str) -> Tensor:
        return torch.stack([onnx_gates(layer.get_parameter(f"{kind}_l0{e}"), op) for e in ends])

    w, r = stacked("weight_ih"), stacked("weight_hh")
    b = torch.cat([stacked("bias_ih"), stacked("bias_hh")], 1)
    values = {n: v.detach().numpy() for n, v in (("w", w), ("r", r), ("b", b))}
    options: dict[str, Any] = {"direction": "bidirectional" if both else "forward"}
    if op == "GRU":
        options["linear_before_reset"] = 1  # as PyTorch has it
    node = helper.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=3, **options)
    built = build(tmp_path, [node], {"x": [6, 2, 4]}, values)
    x = built.args[0]
    wanted = layer(x)[0].unflatten(-1, (len(ends), 3)).transpose(1, 2)
    got = built.module(x)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    mine = gradients(got, [built.module.get_parameter(n) for n in "wrb"])
    theirs = gradients(wanted, list(layer.parameters()))
    for name, parameter in zip(dict(layer.named_parameters()), theirs, strict=True):
        layer.get_parameter(name).data = parameter
    halves = [stacked("bias_ih"), stacked("bias_hh")]
    expected = [stacked("weight_ih"), stacked("weight_hh"), torch.cat(halves, 1)]
    for gradient, one in zip(mine, expected, strict=True):
        torch.testing.assert_close(gradient, one.detach(), rtol=1e-5, atol=1e-6)


def test_activations_with_parameters_are_refused(tmp_path: Path) -> None:
    w, r = weights_of((1, 3, 4), (1, 3, 3))
    node = helper.make_node(
        "RNN", ["x", "w", "r"], ["y"], hidden_size=3, activations=["Elu"], activation_alpha=[0.5]
    )
    diagnostic = refusal(lambda: build(tmp_path, [node], {"x": [6, 2, 4]}, {"w": w, "r": r}))
    assert diagnostic.code == "FB0612"


def body(trips: bool) -> Any:
    """state -> state w, and what each trip gives."""
    nodes = [
        helper.make_node("MatMul", ["state", "w"], ["turned"]),
        helper.make_node("Add", ["turned", "part"] if not trips else ["turned", "x"], ["next"]),
        helper.make_node("Relu", ["next"], ["out"]),
    ]
    info = helper.make_tensor_value_info
    state = info("state", TensorProto.FLOAT, [2, 3])
    results = [info("next", TensorProto.FLOAT, [2, 3]), info("out", TensorProto.FLOAT, [2, 3])]
    if not trips:
        part = info("part", TensorProto.FLOAT, [2, 3])
        return helper.make_graph(nodes, "body", [state, part], results)
    first = [info("i", TensorProto.INT64, []), info("on", TensorProto.BOOL, [])]
    nodes.append(helper.make_node("Identity", ["on"], ["keep"]))
    keep = info("keep", TensorProto.BOOL, [])
    return helper.make_graph(nodes, "body", [*first, state], [keep, *results])


def test_a_loop_is_unrolled(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body(True)),
        helper.make_node("ReduceSum", ["all", "zero"], ["s"], keepdims=0),
        helper.make_node("Add", ["s", "last"], ["y"]),
    ]
    (w,) = weights_of((3, 3))
    built = build(tmp_path, nodes, {"x": [2, 3]}, {"w": w, "n": np.array(4), "zero": np.array([0])})
    x, weight = built.args[0], torch.tensor(w, requires_grad=True)
    state, outs = x, []
    for _ in range(4):
        state = state @ weight + x
        outs.append(state.relu())
    wanted = torch.stack(outs).sum(0) + state
    got = built.module(x)
    torch.testing.assert_close(got, wanted)
    (gradient,) = gradients(got, [built.module.get_parameter("w")])
    torch.testing.assert_close(gradient, gradients(wanted, [weight])[0])


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_is_unrolled(backwards: int, tmp_path: Path) -> None:
    node = helper.make_node(
        "Scan",
        ["start", "x"],
        ["last", "y"],
        body=body(False),
        num_scan_inputs=1,
        scan_input_directions=[backwards],
        scan_output_axes=[1],
    )
    (w,) = weights_of((3, 3))
    values = {"w": w, "start": np.zeros((2, 3), np.float32)}
    built = build(tmp_path, [node], {"x": [5, 2, 3]}, values)
    x = built.args[0]
    state, outs = torch.zeros(2, 3), []
    for part in x.flip(0) if backwards else x:
        state = state @ torch.from_numpy(w) + part
        outs.append(state.relu())
    torch.testing.assert_close(built.module(x), torch.stack(outs, 1))


def test_loops_that_do_not_end_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "y"], body=body(True), name="spin")
    values = {"w": np.ones((3, 3), np.float32), "n": np.array(2**40)}
    diagnostic = refusal(lambda: build(tmp_path, [node], {"x": [2, 3]}, values))
    assert diagnostic.code == "FB0618"
    assert '"spin"' in diagnostic.message


def quantised(path: Path, notes: dict[str, str] | None = None) -> OnnxModel:
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["q"], name="round"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Mul", ["x", "d"], ["y"]),
    ]
    w = np.array([0.26, -9.0, 0.9], np.float32)
    values = {"w": w, "scale": np.array(0.5, np.float32), "zero": np.array(2, np.uint8)}
    return build(path, nodes, {"x": [3]}, values, notes=notes)


def test_rounding_a_parameter_is_refused_unless_asked_for(tmp_path: Path) -> None:
    diagnostic = refusal(lambda: quantised(tmp_path))
    assert diagnostic.code == "FB0612"
    assert STRAIGHT_THROUGH in (diagnostic.hint or "")
    built = quantised(tmp_path, {STRAIGHT_THROUGH: "yes"})
    x = built.args[0]
    got = built.module(x)
    torch.testing.assert_close(got, x * torch.tensor([0.5, -1.0, 1.0]))
    got.sum().backward()
    grad = built.module.get_parameter("w").grad
    torch.testing.assert_close(grad, x * torch.tensor([1.0, 0.0, 1.0]))  # clamped: no gradient


def test_quantised_constants(tmp_path: Path) -> None:
    levels = np.array([[1, -2], [3, 4]], np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"], axis=0),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    scale = np.array([0.5, 2.0], np.float32)
    built = build(tmp_path, nodes, {"x": [3, 2]}, {"q": levels, "scale": scale})
    wanted = built.args[0] @ torch.tensor([[0.5, -1.0], [6.0, 8.0]])
    torch.testing.assert_close(built.module(*built.args), wanted)
    assert [n for n, _ in built.module.named_parameters()] == ["scale"]


GELUS = {
    "Gelu": lambda x, b: F.gelu(x),
    "BiasGelu": lambda x, b: F.gelu(x + b),
    "FastGelu": lambda x, b: F.gelu(x + b, approximate="tanh"),
    "QuickGelu": lambda x, b: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("op", GELUS)
def test_fused_activations(op: str, tmp_path: Path) -> None:
    w, b = weights_of((4, 4), (4,))
    names = (
        ["h", "b"]
        if "b" in GELUS[op].__code__.co_names or op in ("BiasGelu", "FastGelu")
        else ["h"]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(op, names, ["y"], domain=ORT),
    ]
    built = build(tmp_path, nodes, {"x": [3, 4]}, {"w": w, "b": b})
    x = built.args[0]
    wanted = GELUS[op](x @ torch.from_numpy(w), torch.from_numpy(b))
    torch.testing.assert_close(built.module(x), wanted)


def test_fused_matmul(tmp_path: Path) -> None:
    (w,) = weights_of((5, 4))
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain=ORT, transB=1, alpha=0.25)
    built = build(tmp_path, [node], {"x": [2, 3, 4]}, {"w": w})
    torch.testing.assert_close(
        built.module(*built.args), built.args[0] @ torch.from_numpy(w).t() * 0.25
    )


@pytest.mark.parametrize("simplified", [False, True])
def test_skip_layer_norm(simplified: bool, tmp_path: Path) -> None:
    g, b, extra = weights_of((4,), (4,), (4,))
    op = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    names = ["x", "z", "g", "extra"] if simplified else ["x", "z", "g", "b", "extra"]
    nodes = [
        helper.make_node(op, names, ["n", "", "", "s"], domain=ORT, epsilon=1e-3),
        helper.make_node("Add", ["n", "s"], ["y"]),
    ]
    values = {"g": g, "b": b, "extra": extra}
    built = build(tmp_path, nodes, {"x": [2, 3, 4], "z": [2, 3, 4]}, values)
    x, z = built.args
    total = x + z + torch.from_numpy(extra)
    weight, bias = torch.from_numpy(g), torch.from_numpy(b)
    if simplified:
        scaled = total / (total.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    else:
        scaled = F.layer_norm(total, (4,), weight, bias, 1e-3)
    torch.testing.assert_close(built.module(x, z), scaled + total)


@pytest.mark.parametrize("mask", ["none", "lengths", "padding", "causal"])
def test_fused_attention(mask: str, tmp_path: Path) -> None:
    w, b = weights_of((4, 12), (12,))
    values: dict[str, Any] = {"w": w, "b": b}
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    if mask == "lengths":
        values["m"] = np.array([5, 3], np.int32)
    if mask == "padding":
        values["m"] = keep.numpy().astype(np.int32)
    names = ["x", "w", "b", *(["m"] if "m" in values else [])]
    node = helper.make_node(
        "Attention", names, ["y"], domain=ORT, num_heads=2, unidirectional=int(mask == "causal")
    )
    built = build(tmp_path, [node], {"x": [2, 5, 4]}, values)
    x = built.args[0]
    q, k, v = (
        part.reshape(2, 5, 2, 2).transpose(1, 2)
        for part in (x @ torch.from_numpy(w) + torch.from_numpy(b)).chunk(3, -1)
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(2)
    if "m" in values:
        scores = scores.masked_fill(keep[:, None, None] == 0, -math.inf)
    if mask == "causal":
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    wanted = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 4)
    torch.testing.assert_close(built.module(x), wanted)


def test_linear_models_train_their_coefficients(tmp_path: Path) -> None:
    """scikit-learn's pipeline of a scaler and a logistic regression, as skl2onnx writes it."""
    ml = "ai.onnx.ml"
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain=ml, offset=[1.0, 2.0], scale=[0.5, 3.0]),
        helper.make_node(
            "LinearClassifier",
            ["s"],
            ["label", "y"],
            domain=ml,
            name="clf",
            coefficients=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            intercepts=[0.1, 0.2, 0.3],
            classlabels_ints=[0, 1, 2],
            post_transform="SOFTMAX",
        ),
    ]
    built = build(tmp_path, nodes, {"x": [4, 2]}, {})
    x = built.args[0]
    scaled = (x - torch.tensor([1.0, 2.0])) * torch.tensor([0.5, 3.0])
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    wanted = (scaled @ rows.t() + torch.tensor([0.1, 0.2, 0.3])).softmax(-1)
    torch.testing.assert_close(built.module(x), wanted)
    names = {n for n, _ in built.module.named_parameters()}
    assert names == {"clf.coefficients", "clf.intercepts"}
