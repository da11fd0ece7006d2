"""Old opsets, odd types, sparse weights, stored cases of the installed onnx, and damaged files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from helpers.onnx.cases import Ending, of_folder, run
from helpers.onnx.damage import check, mutants
from helpers.onnx_files import linear, refusal, write
from helpers.slow import default_only
from remat_compile.capture.onnx import build_module
from remat_compile.capture.onnx.builder import ModuleBuilder
from remat_compile.capture.onnx.file.limits import LARGEST_BYTES
from remat_compile.capture.onnx.weights import Role
from remat_compile.ir.diagnostics import FBError

pytestmark = pytest.mark.filterwarnings("ignore")
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def evaluated(nodes: list[Any], values: dict[str, Any], opset: int = 20) -> torch.Tensor:
    """`y` of a graph in which everything is known."""
    builder = ModuleBuilder(opset, Path(), train_bn=False)
    for name, value in values.items():
        builder.add_initialiser(numpy_helper.from_array(np.asarray(value), name), Role.CONSTANT)
    builder.run(helper.make_graph(nodes, "g", [], []), {"y"})
    y: torch.Tensor = builder.values["y"].data  # type: ignore[union-attr]
    return y


def test_resize_of_opset_10_shrinks_as_its_stored_tests_do() -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    node = helper.make_node("Resize", ["x", "scales"], ["y"], mode="nearest")
    scales = np.array([1, 1, 0.6, 0.6], np.float32)
    assert evaluated([node], {"x": x, "scales": scales}, 10).tolist() == [[[[1.0, 3.0]]]]
    larger = evaluated([node], {"x": x, "scales": np.array([1, 1, 1, 1.5], np.float32)}, 10)
    assert larger[0, 0, 0].tolist() == [1, 1, 2, 3, 3, 4]


def test_clip_of_opset_6_without_bounds() -> None:
    x = np.array([-3, 9], np.float32)
    assert evaluated([helper.make_node("Clip", ["x"], ["y"])], {"x": x}, 9).tolist() == [-3, 9]
    half = helper.make_node("Clip", ["x"], ["y"], max=0.1)
    assert evaluated([half], {"x": x.astype(np.float64)}, 9).tolist() == [-3, 0.1]


@pytest.mark.parametrize("periodic", [None, 0])
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman"])
def test_windows_with_defaults(name: str, periodic: int | None) -> None:
    options = {} if periodic is None else {"periodic": periodic}
    op = f"{name.title()}Window"
    got = evaluated([helper.make_node(op, ["n"], ["y"], **options)], {"n": np.array(10)})
    wanted = getattr(torch, f"{name}_window")(10, periodic=periodic is None)
    assert got.dtype == torch.float32
    tolerance = 8e-3 if name == "hamming" else 1e-6  # ONNX has 25/46 where PyTorch has 0.54
    torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


KINDS = (np.uint16, np.uint32, np.uint64)
BINARY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.floor_divide,
    "Mod": np.remainder,
    "Max": np.maximum,
    "Min": np.minimum,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseXor": np.bitwise_xor,
    "Less": np.less,
    "GreaterOrEqual": np.greater_equal,
}


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("kind", KINDS)
def test_unsigned_arithmetic_is_numpys(kind: Any, op: str) -> None:
    top = int(np.iinfo(kind).max)
    rng = np.random.default_rng(0)
    some = rng.integers(1, top, 40, dtype=kind, endpoint=True)
    a = np.concatenate([np.array([0, top, top, top // 2 + 1, 5], kind), some])
    b = np.concatenate([np.array([top, top, 1, top // 2, 7], kind), some[::-1]])
    got = evaluated([helper.make_node(op, ["a", "b"], ["y"])], {"a": a, "b": b}).numpy()
    wanted = BINARY[op](a, b)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_of_64_bits(direction: str) -> None:
    a = np.array([2**64 - 1, 2**63, 5], np.uint64)
    b = np.array([63, 1, 0], np.uint64)
    node = helper.make_node("BitShift", ["a", "b"], ["y"], direction=direction)
    wanted = a << b if direction == "LEFT" else a >> b
    np.testing.assert_array_equal(evaluated([node], {"a": a, "b": b}).numpy(), wanted)


def test_types_of_results_beside_unsigned_inputs() -> None:
    x = np.array([3, 9, 1], np.uint32)
    top = [helper.make_node("TopK", ["x", "k"], ["", "y"])]
    assert evaluated(top, {"x": x, "k": np.array([2])}).dtype == torch.int64
    one = [helper.make_node("OneHot", ["x", "depth", "values"], ["y"])]
    values = {"x": x, "depth": np.array(4), "values": np.array([-1, 1])}
    assert evaluated(one, values).tolist()[0] == [-1, -1, -1, 1]


@pytest.mark.parametrize("raw", [True, False])
def test_bfloat16_is_stored_as_such(raw: bool, tmp_path: Path) -> None:
    bits = torch.tensor([1.5, -2.0, 0.1]).to(torch.bfloat16).view(torch.int16).numpy()
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[3])
    if raw:
        tensor.raw_data = bits.tobytes()
    else:
        tensor.int32_data.extend(int(b) & 0xFFFF for b in bits)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    file = write(tmp_path / "m.onnx", [node], {"x": [3]}, {}, elem_type=TensorProto.BFLOAT16)
    model = onnx.load(file)
    model.graph.initializer.append(tensor)
    onnx.save(model, file)
    built = build_module(file)
    stored = built.module.get_parameter("w").detach()
    assert stored.dtype == torch.bfloat16
    assert stored.view(torch.int16).tolist() == bits.tolist()
    np.savez(tmp_path / "s.npz", x=bits.view(np.uint16))
    sampled = build_module(file, sample=tmp_path / "s.npz")
    assert torch.equal(sampled.args[0], stored)


def sparse(path: Path, indices: Any) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    file = write(path, [node], {"x": [2, 3]}, {})
    model = onnx.load(file)
    values = numpy_helper.from_array(np.array([2.0, 5.0], np.float32), "w")
    places = numpy_helper.from_array(np.asarray(indices, np.int64), "at")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 4]))
    onnx.save(model, file)
    return file


@pytest.mark.parametrize("indices", [[1, 11], [[0, 1], [2, 3]]])
def test_sparse_weights_train_their_values_alone(indices: Any, tmp_path: Path) -> None:
    built = build_module(sparse(tmp_path / "m.onnx", indices))
    dense = torch.zeros(3, 4)
    dense[0, 1], dense[2, 3] = 2.0, 5.0
    x = built.args[0]
    out = built.module(x)
    torch.testing.assert_close(out, x @ dense)
    out.sum().backward()
    grad = built.module.get_parameter("w").grad
    torch.testing.assert_close(grad, x.sum(0)[[0, 2]])


def test_sparse_weights_outside_their_tensor(tmp_path: Path) -> None:
    diagnostic = refusal(lambda: build_module(sparse(tmp_path / "m.onnx", [1, 12])))
    assert diagnostic.code == "FB0606"


def test_minus_one_is_a_dynamic_dimension(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", batch=-1)
    assert refusal(lambda: build_module(file)).code == "FB0608"
    assert build_module(file, dims={"x[0]": 7}).args[0].shape == (7, 3)


def constant_of_shape(path: Path, sizes: list[int]) -> Path:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"], name="huge"),
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "big"], ["y"]),
    ]
    weights = {"shape": np.array(sizes), "w": np.ones(1, np.float32)}
    return write(path, nodes, {"x": [1]}, weights)


@pytest.mark.parametrize("sizes", [[10**9], [2**40, 2**20]])
def test_what_is_computed_while_building_is_capped(sizes: list[int], tmp_path: Path) -> None:
    diagnostic = refusal(lambda: build_module(constant_of_shape(tmp_path / "m.onnx", sizes)))
    assert diagnostic.code in ("FB0618", "FB0606")
    assert '"huge"' in diagnostic.message
    if sizes == [10**9]:
        assert diagnostic.code == "FB0618"
        assert f"{4 * 10**9:,} bytes" in diagnostic.message


def test_views_count_in_full(tmp_path: Path) -> None:
    """An expanded constant takes no memory until it is stored."""
    nodes = [
        helper.make_node("Expand", ["one", "shape"], ["big"], name="wide"),
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "big"], ["y"]),
    ]
    one = np.ones(1, np.int64)
    weights = {"one": one, "shape": np.array([2**28]), "w": np.ones(1, np.float32)}
    diagnostic = refusal(
        lambda: build_module(write(tmp_path / "m.onnx", nodes, {"x": [1]}, weights))
    )
    assert diagnostic.code == "FB0618"
    assert '"wide"' in diagnostic.message


def test_sample_inputs_are_capped(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", batch="n")
    diagnostic = refusal(lambda: build_module(file, dims={"n": LARGEST_BYTES // 12 + 1}))
    assert diagnostic.code == "FB0618"
    assert "--sample" in (diagnostic.hint or "")


def test_nothing_leaves_without_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        raise KeyError("unforeseen")

    monkeypatch.setattr("remat_compile.capture.onnx.build.classify", broken)
    file = linear(tmp_path / "m.onnx")
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0620"
    assert "m.onnx" in diagnostic.message
    assert "unforeseen" in diagnostic.message


def test_shapes_that_do_not_fit_come_without_torchs_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], name="product")]
    file = write(tmp_path / "m.onnx", nodes, {"x": [4]}, {"w": np.ones(3, np.float32)})
    with caplog.at_level(logging.ERROR), pytest.raises(FBError) as caught:
        build_module(file)
    assert not [r for r in caplog.records if "fake_tensor" in r.name]
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_products_of_different_types(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    weights = {"w": np.ones((3, 2), np.float64)}
    file = write(tmp_path / "m.onnx", [node], {"x": [4, 3]}, weights)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0606"
    assert '"product"' in diagnostic.message
    assert "float32, float64" in diagnostic.message


def test_statistics_that_are_no_floats(tmp_path: Path) -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    weights: dict[str, Any] = {n: np.ones(3, np.float32) for n in "sbm"}
    weights["v"] = np.ones(3, np.int64)
    diagnostic = refusal(
        lambda: build_module(write(tmp_path / "m.onnx", [node], {"x": [2, 3]}, weights))
    )
    assert diagnostic.code == "FB0606"
    assert "floating-point" in diagnostic.message


def stored(step: int) -> list[Any]:
    return [case for i, case in enumerate(of_folder(DATA)) if i % step == 0]


def unlike_passed(cases: list[Any]) -> list[str]:
    outcomes = [(case.name, run(case)) for case in cases]
    assert all(o.ending in (Ending.PASSED, Ending.REFUSED) for _, o in outcomes), outcomes
    return [name for name, outcome in outcomes if outcome.ending is Ending.REFUSED]


def test_stored_models_of_opset_6_and_older() -> None:
    """PyTorch's of 2017, converted inside; every fifth."""
    cases = stored(5)
    assert len(cases) > 20
    assert len(unlike_passed(cases)) <= len(cases) // 20


@pytest.mark.slow
def test_all_stored_models() -> None:
    cases = [case for case in stored(1) if case.is_float]
    assert len(cases) > 100
    assert len(unlike_passed(cases)) <= len(cases) // 20


@pytest.mark.parametrize("part", default_only(range(8), [0]))
def test_damaged_files_end_in_a_code_or_a_module(part: int, tmp_path: Path) -> None:
    outcomes = {check(data, tmp_path) for data in mutants(1, 250 * part, 250)}
    assert {"built", "FB0603", "FB0606"} <= outcomes
