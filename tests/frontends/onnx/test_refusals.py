"""Bad input: one clear message with a code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from helpers.onnx_files import linear, refusal, write
from remat_compile.capture.onnx import build_module
from remat_compile.ir.diagnostics import FBError

node = helper.make_node


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "FB0601"),
        (b"", "FB0602"),
        (b"PK\x03\x04 not a model", "FB0603"),
        (b"hello\n", "FB0603"),
        (b"\x08\x0a", "FB0603"),
        (-20, "FB0603"),
    ],
)
def test_a_file_that_is_no_onnx_model(
    tmp_path: Path, content: bytes | int | None, code: str
) -> None:
    file = tmp_path / "t.onnx"
    if isinstance(content, int):  # cut short
        content = linear(file).read_bytes()[:content]
    if content is not None:
        file.write_bytes(content)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == code
    assert "t.onnx" in diagnostic.message


@pytest.mark.parametrize(("opset", "word"), [(99, "99"), (0, "opset 0"), (None, "")])
def test_opset_out_of_range(tmp_path: Path, opset: int | None, word: str) -> None:
    file = linear(tmp_path / "m.onnx")
    model = onnx.load(file)
    if opset is None:
        del model.opset_import[:]
    else:
        model.opset_import[0].version = opset
    file.write_bytes(model.SerializeToString())
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0604"
    assert word in diagnostic.message


ONES = np.ones(4, np.float32)
GRAPHS: dict[str, tuple[list[Any], list[int], Any, str, str]] = {
    "a name that is nowhere": (
        [node("Gemm", ["x", "w", "nowhere"], ["y"])],
        [4, 3],
        np.ones((3, 2), np.float32),
        "FB0606",
        "nowhere",
    ),
    "shapes that do not fit": (
        [node("MatMul", ["x", "w"], ["y"], name="product")],
        [4, 3],
        np.ones((5, 2), np.float32),
        "FB0606",
        '"product"',
    ),
    "no parameter": ([node("Relu", ["x"], ["y"])], [4], ONES, "FB0611", ""),
    "no output of a parameter": (
        [
            node("Mul", ["x", "w"], ["a"]),
            node("ArgMax", ["a"], ["i"], axis=0),
            node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
        ],
        [4],
        ONES,
        "FB0616",
        "",
    ),
    "an attribute": (
        [
            node("Cast", ["x"], ["i"], to=TensorProto.UINT8),
            node("BitShift", ["i", "i"], ["y"], name="shift", direction="UP"),
        ],
        [4],
        ONES,
        "FB0612",
        '"shift"',
    ),
    "a shape of values": (
        [
            node("Cast", ["x"], ["s"], to=TensorProto.INT64),
            node("Reshape", ["w", "s"], ["y"], name="shaped"),
        ],
        [1],
        ONES,
        "FB0613",
        '"shaped"',
    ),
    "a size of values": (
        [
            node("Mul", ["x", "w"], ["a"]),
            node("NonZero", ["a"], ["i"]),
            node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
        ],
        [4],
        ONES,
        "FB0613",
        "",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_refused(tmp_path: Path, name: str) -> None:
    nodes, shape, weight, code, word = GRAPHS[name]
    weights = {} if name == "no parameter" else {"w": weight}
    file = write(tmp_path / "m.onnx", nodes, {"x": shape}, weights)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == code
    assert word in diagnostic.message


def test_input_types(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", elem_type=TensorProto.STRING)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0614"
    assert "STRING" in diagnostic.message


def external(tmp_path: Path) -> Path:
    model = onnx.load(linear(tmp_path / "m.onnx"))
    file = tmp_path / "ext.onnx"
    onnx.save(model, file, save_as_external_data=True, location="w.bin", size_threshold=0)
    return file


def test_external_weights_are_read(tmp_path: Path) -> None:
    built = build_module(external(tmp_path))
    assert set(built.module.state_dict()) == {"fc.weight", "fc.bias"}
    inline = build_module(tmp_path / "m.onnx").module.state_dict()
    assert all((v == inline[k]).all() for k, v in built.module.state_dict().items())


def test_missing_external_weights(tmp_path: Path) -> None:
    file = external(tmp_path)
    (tmp_path / "w.bin").unlink()
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0605"
    assert '"fc.weight"' in diagnostic.message
    assert "1 other" in diagnostic.message


def test_external_weights_that_are_too_short(tmp_path: Path) -> None:
    file = external(tmp_path)
    (tmp_path / "w.bin").write_bytes(b"1234")
    assert refusal(lambda: build_module(file)).code == "FB0605"


PLACES = {
    "absolute": [("location", "/etc/passwd")],
    "parent": [("location", "../w.bin")],
    "parent by a folder": [("location", "a/../../w.bin")],
    "NUL": [("location", "w\0.bin")],
    "link that leads out": [("location", "link.bin")],
    "folder": [("location", ".")],
    "no number": [("location", "w.bin"), ("offset", "x")],
    "before the start": [("location", "w.bin"), ("offset", "-8")],
    "negative length": [("location", "w.bin"), ("length", "-8")],
}


@pytest.mark.parametrize("where", ["initialiser", "constant", "subgraph"])
@pytest.mark.parametrize("place", PLACES)
def test_external_weights_of_every_tensor(tmp_path: Path, place: str, where: str) -> None:
    """Also those in attributes, which onnx itself would read from the working folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (tmp_path / "w.bin", folder / "w.bin"):
        path.write_bytes(b"1234" * 64)
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    model = onnx.load(linear(folder / "m.onnx"))
    weight = next(t for t in model.graph.initializer if t.name == "fc.weight")
    if where != "initialiser":
        model.graph.initializer.remove(weight)
        holder = model.graph
        if where == "subgraph":
            branch = helper.make_graph([], "branch", [], [])
            model.graph.node.insert(0, helper.make_node("If", ["c"], ["o"], then_branch=branch))
            holder = model.graph.node[0].attribute[0].g
        holder.node.insert(0, helper.make_node("Constant", [], ["fc.weight"], value=weight))
        weight = holder.node[0].attribute[0].t
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in PLACES[place]:
        weight.external_data.add(key=key, value=value)
    (folder / "bad.onnx").write_bytes(model.SerializeToString())
    diagnostic = refusal(lambda: build_module(folder / "bad.onnx"))
    assert diagnostic.code == "FB0605", diagnostic
    assert "outside" in diagnostic.message or "parent" not in place


def test_unsupported_operators_all_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["x", "x"], ["a"], name="nms"),
        helper.make_node("NonMaxSuppression", ["x", "x"], ["b"], name="nms2"),
        helper.make_node("Strange", ["x"], ["c"], name="odd", domain="com.example"),
        helper.make_node("Fantasy", ["x"], ["y"], name="fan"),
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [1, 2, 4]}, {})
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0607"
    assert "3 operators" in diagnostic.message
    assert 'com.example.Strange (opset 1) at node "odd"' in diagnostic.message
    assert 'NonMaxSuppression (opset 20) at node "nms" and 1 other' in diagnostic.message
    assert "Fantasy (opset 20)" in diagnostic.message


@pytest.mark.parametrize(
    ("dims", "word"),
    [
        ({"batc": 8}, 'Did you mean "batch"'),
        ({"batch": "1..64"}, "range"),
        ({"batch": "many"}, "not an integer"),
        ({"batch": 0}, "at least 1"),
    ],
)
def test_wrong_dimension_options(tmp_path: Path, dims: Any, word: str) -> None:
    file = linear(tmp_path / "m.onnx", batch="batch")
    diagnostic = refusal(lambda: build_module(file, dims=dims))
    assert diagnostic.code == "FB0609"
    assert word in diagnostic.message


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x": np.zeros((4, 3))}, "float64"),
        ({"x": np.zeros((4, 2), np.float32)}, "[4, 2]"),
        ({"z": np.zeros((4, 3), np.float32)}, '"z" is no input'),
        ({"x": np.zeros((4, 3), np.float32), "z": np.zeros(1)}, '"z" is no input'),
    ],
)
def test_sample_that_does_not_fit(tmp_path: Path, arrays: Any, word: str) -> None:
    file = linear(tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(FBError) as caught:
        build_module(file, sample=tmp_path / "s.npz")
    assert {d.code for d in caught.value.diagnostics} == {"FB0610"}
    assert word in str(caught.value)


def test_sample_that_cannot_be_read(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx")
    (tmp_path / "s.npz").write_text("no")
    for sample in ("s.npz", "missing.npz"):
        assert refusal(lambda s=sample: build_module(file, sample=tmp_path / s)).code == "FB0610"


def test_trainable_pattern_without_match(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx")
    diagnostic = refusal(lambda: build_module(file, trainable=["fc.wight"]))
    assert diagnostic.code == "FB0615"
    assert 'Did you mean "fc.weight"' in diagnostic.message


def test_half_precision_weights_keep_their_bits(tmp_path: Path) -> None:
    weight = np.array([[0.1, -2.5, 3.0]], np.float16)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    file = write(
        tmp_path / "m.onnx", [node], {"x": [1, 3]}, {"w": weight}, elem_type=TensorProto.FLOAT16
    )
    stored = build_module(file).module.get_parameter("w").detach().numpy()
    assert stored.tobytes() == numpy_helper.to_array(onnx.load(file).graph.initializer[0]).tobytes()
