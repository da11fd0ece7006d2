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


def test_missing_file(tmp_path: Path) -> None:
    diagnostic = refusal(lambda: build_module(tmp_path / "none.onnx"))
    assert diagnostic.code == "FB0601"
    assert "none.onnx" in diagnostic.message


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "e.onnx").touch()
    assert refusal(lambda: build_module(tmp_path / "e.onnx")).code == "FB0602"


def test_truncated_file(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx")
    file.write_bytes(file.read_bytes()[:-20])
    assert refusal(lambda: build_module(file)).code == "FB0603"


@pytest.mark.parametrize("content", [b"PK\x03\x04 not a model", b"hello\n", b"\x08\x0a"])
def test_a_file_that_is_no_onnx_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.onnx").write_bytes(content)
    assert refusal(lambda: build_module(tmp_path / "t.onnx")).code == "FB0603"


@pytest.mark.parametrize(("opset", "word"), [(99, "99"), (0, "opset 0")])
def test_opset_out_of_range(tmp_path: Path, opset: int, word: str) -> None:
    file = linear(tmp_path / "m.onnx")
    model = onnx.load(file)
    model.opset_import[0].version = opset
    file.write_bytes(model.SerializeToString())
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0604"
    assert word in diagnostic.message


def test_no_opset(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx")
    model = onnx.load(file)
    del model.opset_import[:]
    file.write_bytes(model.SerializeToString())
    assert refusal(lambda: build_module(file)).code == "FB0604"


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


@pytest.mark.parametrize("location", ["../w.bin", "a/../../w.bin"])
def test_external_weights_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "sub").mkdir()
    file = external(tmp_path)
    model = onnx.load(file, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = location
    inner = tmp_path / "sub" / "m.onnx"
    inner.write_bytes(model.SerializeToString())
    diagnostic = refusal(lambda: build_module(inner))
    assert diagnostic.code == "FB0605"
    assert "outside" in diagnostic.message


PLACES = {
    "absolute": [("location", "/etc/passwd")],
    "parent": [("location", "../w.bin")],
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


def test_invalid_model(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w", "nowhere"], ["y"])
    file = write(tmp_path / "m.onnx", [node], {"x": [4, 3]}, {"w": np.ones((3, 2), np.float32)})
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0606"
    assert "nowhere" in diagnostic.message


def test_shapes_that_do_not_fit_name_the_node(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    file = write(tmp_path / "m.onnx", [node], {"x": [4, 3]}, {"w": np.ones((5, 2), np.float32)})
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0606"
    assert '"product"' in diagnostic.message


def test_unsupported_operators_all_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["x", "x"], ["a"], name="nms"),
        helper.make_node("NonMaxSuppression", ["x", "x"], ["b"], name="nms2"),
        helper.make_node("Strange", ["x"], ["c"], name="odd", domain="com.example"),
        helper.make_node("Fantasy", ["x"], ["y"], name="fan"),
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [1, 2, 4]}, {})
    model = onnx.load(file)
    model.opset_import.append(helper.make_opsetid("com.example", 3))
    file.write_bytes(model.SerializeToString())
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0607"
    assert "3 operators" in diagnostic.message
    assert 'com.example.Strange (opset 3) at node "odd"' in diagnostic.message
    assert 'NonMaxSuppression (opset 20) at node "nms" and 1 other' in diagnostic.message
    assert "Fantasy (opset 20)" in diagnostic.message


def test_unbound_dimensions_are_listed(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", batch="batch")
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0608"
    assert diagnostic.hint == "give --dim batch=N"
    nameless = linear(tmp_path / "n.onnx", batch=None)
    assert '"x[0]"' in refusal(lambda: build_module(nameless)).message
    assert build_module(nameless, dims={"x[0]": "5"}).args[0].shape == (5, 3)


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


def test_no_trainable_parameter(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    file = write(tmp_path / "m.onnx", [node], {"x": [4]}, {})
    assert refusal(lambda: build_module(file)).code == "FB0611"


def test_no_output_that_depends_on_a_parameter(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("ArgMax", ["a"], ["i"], axis=0),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [4]}, {"w": np.ones(4, np.float32)})
    assert refusal(lambda: build_module(file)).code == "FB0616"


def test_unsupported_attributes(tmp_path: Path) -> None:
    node = helper.make_node("BitShift", ["x", "x"], ["y"], name="shift", direction="UP")
    weights = {"w": np.ones(4, np.float32)}
    file = write(tmp_path / "m.onnx", [node], {"x": [4]}, weights, elem_type=TensorProto.UINT8)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0612"
    assert '"shift"' in diagnostic.message


def test_shape_that_depends_on_values(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["s"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["w", "s"], ["y"], name="shaped"),
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [1]}, {"w": np.ones(4, np.float32)})
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0613"
    assert '"shaped"' in diagnostic.message


def test_size_that_depends_on_values(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("NonZero", ["a"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [4]}, {"w": np.ones(4, np.float32)})
    assert refusal(lambda: build_module(file)).code == "FB0613"


def test_input_types(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", elem_type=TensorProto.STRING)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0614"
    assert "STRING" in diagnostic.message


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
