"""Operators without a PyTorch module, against ONNX's own reference and by finite differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_mel_weight_matrix import MelWeightMatrix
from torch import Tensor

from helpers.onnx_files import refusal, write
from remat_compile.capture.onnx import OnnxModel, build_module

GAIN = helper.make_node("Mul", ["x", "gain"], ["scaled"])
"""Something to train in every file."""
ML = "ai.onnx.ml"
KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}


@dataclass(frozen=True)
class Case:
    """A node `op(x * gain, ...)`; float tables become weights, and all others stay known."""

    op: str
    x: tuple[int, ...]
    others: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("y",)
    names: Sequence[str] = ()
    """Inputs in order, where some are left out."""
    opset: int = 22
    domain: str = ""


def table(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


BOXES = np.array([[0.3, 0.4, 5.1, 3.7], [2.2, -3.5, 9.7, 6.1], [1.0, 1.0, 1.0, 1.0]], np.float32)
ROI = {"rois": BOXES, "image": np.array([1, 0, 1])}
BINS = {"output_height": 2, "output_width": 3}
DEFORM = {"w": table(4, 1, 3, 2), "offset": table(2, 24, 3, 4, seed=1), "b": table(4)}
GROUPS = {
    "group": 2,
    "offset_group": 2,
    "strides": [2, 1],
    "pads": [1, 0, 1, 1],
    "dilations": [1, 2],
}
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
STEPS = {"k": table(2, 3, 4, seed=2), "v": table(2, 3, 6, seed=3)}
DECAY, RATE = -np.abs(table(2, 3, 4, seed=4)), np.abs(table(2, 3, 2, seed=5))
PAST = table(2, 2, 2, 3, seed=6)

CASES = {
    "roialign": Case("RoiAlign", (2, 2, 5, 6), ROI, BINS),
    "roialign_max": Case("RoiAlign", (2, 2, 5, 6), ROI, {**BINS, "mode": "max"}),
    "roialign_sampled": Case(
        "RoiAlign",
        (2, 2, 5, 6),
        ROI,
        {**BINS, "sampling_ratio": 3, "spatial_scale": 0.7},
    ),
    "roialign_of_old": Case(
        "RoiAlign",
        (2, 2, 5, 6),
        ROI,
        {**BINS, "coordinate_transformation_mode": "output_half_pixel"},
    ),
    "deformconv": Case("DeformConv", (2, 2, 5, 5), DEFORM, GROUPS),
    "deformconv_masked": Case(
        "DeformConv", (2, 2, 5, 5), {**DEFORM, "m": table(2, 12, 3, 4, seed=7)}, GROUPS
    ),
    "linear": Case(
        "LinearAttention", (2, 3, 8), STEPS, {**HEADS, "update_rule": "linear"}, ("y", "s")
    ),
    "gated": Case(
        "LinearAttention",
        (2, 3, 8),
        {**STEPS, "past": PAST, "decay": DECAY},
        {**HEADS, "update_rule": "gated", "scale": 0.3},
        ("y", "s"),
    ),
    "delta": Case(
        "LinearAttention",
        (2, 3, 8),
        {**STEPS, "past": PAST, "beta": RATE},
        {**HEADS, "update_rule": "delta"},
        ("y", "s"),
        ("x", "k", "v", "past", "", "beta"),
    ),
    "gated_delta": Case(
        "LinearAttention",
        (2, 3, 8),
        {**STEPS, "decay": DECAY[..., :2], "beta": RATE[..., :1]},
        HEADS,
        ("y", "s"),
        ("x", "k", "v", "", "decay", "beta"),
    ),
    "col2im_uneven": Case(
        "Col2Im",
        (2, 12, 12),
        {"image": np.array([5, 4]), "block": np.array([2, 3])},
        {"pads": [1, 0, 0, 1], "strides": [1, 1], "dilations": [2, 1]},
    ),
    "col2im_in_3d": Case(
        "Col2Im",
        (1, 16, 8),
        {"image": np.array([4, 3, 3]), "block": np.array([2, 2, 2])},
        {"pads": [0, 0, 1, 0, 0, 0], "strides": [2, 1, 2]},
    ),
    "feature_of_vector": Case(
        "ArrayFeatureExtractor", (5,), {"i": np.array([[3, 0, 3]])}, domain=ML, opset=20
    ),
    "features": Case("ArrayFeatureExtractor", (2, 5), {"i": np.array([4, 1])}, domain=ML, opset=20),
}


def made(path: Path, case: Case, kind: Any = np.float32) -> tuple[Path, OnnxModel]:
    """The file of a case with all its floats of one type, and its module."""
    names = list(case.names) or ["x", *case.others]
    given = ["scaled" if name == "x" else name for name in names]
    nodes = [
        GAIN,
        helper.make_node(case.op, given, list(case.results), domain=case.domain, **case.attributes),
    ]
    tables = {"gain": table(case.x[-1], seed=8).astype(kind)}
    tables |= {n: v.astype(kind) if v.dtype == np.float32 else v for n, v in case.others.items()}
    opset = 27 if case.op == "LinearAttention" else case.opset
    options: dict[str, Any] = {"opset": opset, "elem_type": KINDS[kind], "outputs": case.results}
    file = write(path / "m.onnx", nodes, {"x": case.x}, tables, **options)
    model = onnx.load(file)
    for value in model.graph.output:
        value.type.tensor_type.elem_type = KINDS[kind]
    onnx.save(model, file)
    return file, build_module(file)


def outputs(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_references(name: str, tmp_path: Path) -> None:
    file, built = made(tmp_path, CASES[name])
    wanted = ReferenceEvaluator(str(file)).run(None, {"x": built.args[0].numpy()})
    got = outputs(built.module(*built.args))
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str, tmp_path: Path) -> None:
    """With respect to the input and every weight; regions are no weights."""
    _, built = made(tmp_path, CASES[name], np.float64)
    parameters = [p for n, p in built.module.named_parameters()]
    floats = [n for n, v in CASES[name].others.items() if v.dtype == np.float32 and n != "rois"]
    assert [n for n, _ in built.module.named_parameters()] == ["gain", *floats]
    x = built.args[0].requires_grad_()

    def run(*values: Tensor) -> Any:
        named = dict(zip([n for n, _ in built.module.named_parameters()], values[1:], strict=True))
        return torch.func.functional_call(built.module, named, values[:1])

    assert torch.autograd.gradcheck(run, (x, *parameters), atol=1e-5, fast_mode=True)


def test_a_deformed_convolution_that_is_not_deformed(tmp_path: Path) -> None:
    still = {"w": table(4, 2, 3, 3), "offset": np.zeros((1, 18, 4, 4), np.float32)}
    case = Case("DeformConv", (1, 2, 4, 4), still, {"pads": [1, 1, 1, 1]})
    _, built = made(tmp_path, case)
    x = built.args[0] * built.module.get_parameter("gain")
    wanted = torch.conv2d(x, torch.from_numpy(still["w"]), padding=1)
    torch.testing.assert_close(built.module(*built.args), wanted)


def test_an_offset_for_another_image_is_refused(tmp_path: Path) -> None:
    wrong = {"w": table(4, 2, 3, 3), "offset": np.zeros((1, 18, 3, 3), np.float32)}
    case = Case("DeformConv", (1, 2, 4, 4), wrong, {"pads": [1, 1, 1, 1]})
    diagnostic = refusal(lambda: made(tmp_path, case))
    assert diagnostic.code == "FB0606"
    assert "[1, 18, 3, 3]" not in diagnostic.message
    assert "offset is [18, 3, 3], not [18, 4, 4]" in diagnostic.message


def test_the_grid_of_a_computed_region_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["boxes", "boxes"], ["rois"]),
        helper.make_node("RoiAlign", ["x", "rois", "image"], ["y"], name="align"),
    ]
    inputs = {"x": [1, 2, 5, 5], "boxes": [1, 4]}
    file = write(tmp_path / "m.onnx", nodes, inputs, {"image": np.array([0])})
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0613"
    assert '"align"' in diagnostic.message


def test_the_rule_of_a_linear_attention_needs_its_inputs(tmp_path: Path) -> None:
    case = Case("LinearAttention", (2, 3, 8), STEPS, {**HEADS, "update_rule": "gated"}, ("y", "s"))
    diagnostic = refusal(lambda: made(tmp_path, case))
    assert diagnostic.code == "FB0606"
    assert '"gated"' in diagnostic.message


def test_mel_weights(tmp_path: Path) -> None:
    """A spectrum of 129 bins as 20 bands: the matrix is the reference's."""
    settings = {
        "bands": np.array(20),
        "size": np.array(256),
        "rate": np.array(8192),
        "low": np.array(0.0, np.float32),
        "high": np.array(4096.0, np.float32),
    }
    nodes = [
        helper.make_node("MelWeightMatrix", list(settings), ["mel"]),
        GAIN,
        helper.make_node("MatMul", ["scaled", "mel"], ["y"]),
    ]
    tables = {**settings, "gain": np.ones(129, np.float32)}
    file = write(tmp_path / "m.onnx", nodes, {"x": [3, 129]}, tables)
    built = build_module(file)
    matrix = MelWeightMatrix.eval(*settings.values())
    assert matrix.shape == (129, 20)
    assert matrix.any()
    torch.testing.assert_close(
        built.module(*built.args), built.args[0] @ torch.from_numpy(matrix).float()
    )


def test_binarizer(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Binarizer", ["x"], ["b"], domain=ML, threshold=0.2),
        helper.make_node("Mul", ["b", "gain"], ["y"]),
    ]
    built = build_module(write(tmp_path / "m.onnx", nodes, {"x": [3, 4]}, {"gain": table(4)}))
    high = (built.args[0] > 0.2).float()
    torch.testing.assert_close(built.module(*built.args), high * torch.from_numpy(table(4)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_as_tensorflow_did_for_nearest(mode: str, tmp_path: Path) -> None:
    """Output element i lies at (i + 1/2) / scale, without the half taken back (opset 11)."""
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_half_pixel_for_nn",
        "nearest_mode": "floor",
    }
    node = helper.make_node("Resize", ["scaled", "roi", "scales"], ["y"], **attributes)
    tables = {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 0.4], np.float32)}
    tables["gain"] = np.ones(10, np.float32)
    file = write(tmp_path / "m.onnx", [GAIN, node], {"x": [1, 1, 10]}, tables, opset=11)
    built = build_module(file)
    x = built.args[0]
    places = [1.25, 3.75, 6.25, 8.75]
    low = x[..., [1, 3, 6, 8]]
    part = torch.tensor([place % 1 for place in places])
    wanted = low if mode == "nearest" else low + part * (x[..., [2, 4, 7, 9]] - low)
    torch.testing.assert_close(built.module(x), wanted)


MATMUL = helper.make_node("MatMul", ["x", "g"], ["y"])
UNSOUND = {
    "a float and an integer": (
        [helper.make_node("Gemm", ["x", "w", "n"], ["y"], name="bad")],
        {"w": table(3, 2), "n": np.array([1, 2])},
    ),
    "a gather at floats": (
        [helper.make_node("Gather", ["w", "x"], ["y"], name="bad")],
        {"w": table(3, 2)},
    ),
    "no operator for integers": (
        [
            helper.make_node("Cast", ["x"], ["i"], to=TensorProto.BOOL),
            helper.make_node("Bernoulli", ["i"], ["y"], name="bad"),
        ],
        {},
    ),
    "a scale of integers": (
        [helper.make_node("LayerNormalization", ["x", "n"], ["y"], name="bad")],
        {"n": np.array([1, 2, 3])},
    ),
    "a fused operator": (
        [
            helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
            helper.make_node("BiasGelu", ["i", "n"], ["y"], name="bad", domain="com.microsoft"),
        ],
        {"n": np.array([1, 2, 3], np.int32)},
    ),
    "an index outside": (
        [helper.make_node("Gather", ["w", "n"], ["g"], name="bad"), MATMUL],
        {"w": table(3, 2), "n": np.array([0, 1, 3])},
    ),
    "an image outside": (
        [
            helper.make_node("Unsqueeze", ["x", "n"], ["u"]),
            helper.make_node("RoiAlign", ["u", "rois", "n"], ["y"], name="bad"),
        ],
        {"rois": table(2, 4), "n": np.array([0, 1])},
    ),
    "statistics of two dimensions": (
        [helper.make_node("BatchNormalization", ["x", "w", "w", "w", "n"], ["y"], name="bad")],
        {"w": np.ones(3, np.float32), "n": np.ones((3, 1), np.float32)},
    ),
    "an unknown class": (
        [helper.make_node("SoftmaxCrossEntropyLoss", ["x", "n"], ["y"], name="bad")],
        {"n": np.array([1, -1])},
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_what_only_running_would_refuse_is_refused(name: str, tmp_path: Path) -> None:
    """Found by damaged files: the module was built, and PyTorch raised when it ran."""
    nodes, weights = UNSOUND[name]
    file = write(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, weights)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0606"
    assert '"bad"' in diagnostic.message


def test_bernoulli_of_what_is_no_probability(tmp_path: Path) -> None:
    """The standard compares with a uniform number: never 1 below 0, always 1 from 1 on."""
    nodes = [
        helper.make_node("Bernoulli", ["x"], ["b"]),
        helper.make_node("Mul", ["b", "w"], ["y"]),
    ]
    built = build_module(write(tmp_path / "m.onnx", nodes, {"x": [4]}, {"w": table(4)}))
    drawn = built.module(torch.tensor([-3.0, 7.0, math.nan, math.inf]))
    wanted = torch.tensor([0.0, 1.0, 0.0, 1.0]) * torch.from_numpy(table(4))
    torch.testing.assert_close(drawn, wanted)
