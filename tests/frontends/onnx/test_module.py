"""What the module is like: names, folding, roles of initialisers, capture, warnings."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from helpers.models import SMALL, export_onnx, no_dropout
from helpers.onnx_files import linear, refusal, write
from helpers.paths import ROOT
from remat_compile.capture.guards.call_guards import guards_of_call
from remat_compile.capture.onnx import build_module, export_trainable
from remat_compile.capture.onnx.call import decimal_float, literals_of, widened
from remat_compile.capture.onnx.module import NodeModule
from remat_compile.capture.onnx.table import own_operators

pytestmark = pytest.mark.filterwarnings("ignore")
ONES = np.ones((3, 2), np.float32)


def nodes_of(module: nn.Module) -> list[str]:
    return [m.call.op for m in module.modules() if isinstance(m, NodeModule)]


def test_samples_are_made_from_the_declared_types(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", batch="n")
    first, second = (build_module(file, dims={"n": 6}) for _ in range(2))
    assert first.arg_names == ("x",)
    assert first.output_names == ("y",)
    assert first.name == "m.onnx"
    assert first.sha256 == second.sha256
    assert len(first.sha256) == 64
    assert torch.equal(first.args[0], second.args[0])
    assert first.args[0].shape == (6, 3)
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    ids = write(tmp_path / "i.onnx", [node], {"i": [4]}, {"w": ONES}, elem_type=TensorProto.INT64)
    assert torch.equal(build_module(ids).args[0], torch.zeros(4, dtype=torch.int64))


def test_a_sample_file_gives_inputs_and_dimensions(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", batch="n")
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.savez(tmp_path / "s.npz", x=x)
    built = build_module(file, sample=tmp_path / "s.npz")
    assert built.dims == {"n": 5}
    assert np.array_equal(built.args[0].numpy(), x)


def test_parameters_keep_their_names_and_nodes_are_named(tmp_path: Path) -> None:
    module, args, _ = export_onnx("small-gpt", tmp_path / "m.onnx")
    built = build_module(tmp_path / "m.onnx").module
    wanted = {id(p): n for n, p in module.named_parameters(remove_duplicate=False)}
    names = dict(module.named_parameters(remove_duplicate=False))
    assert {id(names[n]) for n, _ in built.named_parameters()} == set(wanted)
    assert copy.deepcopy(built)(*args).shape == built(*args).shape
    assert "Constant" not in nodes_of(built)
    assert "Shape" not in nodes_of(built)


def test_what_is_known_is_computed_once(tmp_path: Path) -> None:
    """Shapes of inputs, and what follows from them, leave no trace but their result."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("CastLike", ["half", "x"], ["scale"]),
        helper.make_node("Mul", ["r", "scale"], ["m"]),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    weights = {
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array([-1]),
        "half": np.array(0.5),
        "w": np.ones((6, 1), np.float32),
    }
    file = write(tmp_path / "m.onnx", nodes, {"x": [4, 2, 3]}, weights)
    built = build_module(file)
    assert nodes_of(built.module) == ["Reshape", "Mul", "MatMul"]
    assert list(built.module.buffers()) == []
    assert [n for n, _ in built.module.named_parameters()] == ["w"]
    assert torch.allclose(built.module(*built.args), built.args[0].reshape(4, 6).sum(1, True) / 2)


def test_equal_constants_are_stored_once(tmp_path: Path) -> None:
    mask = np.array([[0, -np.inf], [0, 0]], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "mask"], ["b"]),
        helper.make_node("Add", ["b", "again"], ["y"]),
    ]
    weights = {"w": np.ones((2, 2), np.float32), "mask": mask, "again": mask}
    built = build_module(write(tmp_path / "m.onnx", nodes, {"x": [2, 2]}, weights))
    assert [n for n, _ in built.module.named_parameters()] == ["w"]
    assert len(list(built.module.buffers())) == 1
    assert list(built.module.state_dict()) == ["w"]


def test_the_caller_may_say_what_is_trained(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx")
    built = build_module(file, trainable=["*.bias"])
    assert [n for n, _ in built.module.named_parameters()] == ["fc.bias"]


def test_names_that_python_or_modules_cannot_have(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "forward"], ["a"], name="/type/call:0"),
        helper.make_node("Add", ["a", "b/1"], ["b"], name="/type/call:0"),
        helper.make_node("Add", ["b", "b"], ["y"], name="b"),
    ]
    weights = {"forward": ONES, "b/1": np.ones(2, np.float32), "b": np.ones(2, np.float32)}
    del weights["b"]
    built = build_module(write(tmp_path / "m.onnx", nodes, {"x": [4, 3]}, weights))
    names = {n for n, _ in built.module.named_parameters()}
    recovered = {built.module.onnx_names[n] for n in names}  # type: ignore[index]
    assert recovered == {"forward", "b/1"}
    assert built.module(*built.args).shape == (4, 2)


def test_a_known_condition_picks_its_branch(tmp_path: Path) -> None:
    def branch(op: str) -> Any:
        out = helper.make_tensor_value_info("r", TensorProto.FLOAT, [])
        return helper.make_graph([helper.make_node(op, ["a"], ["r"])], op, [], [out])

    both = {"then_branch": branch("Relu"), "else_branch": branch("Neg")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("If", ["yes"], ["p"], **both),
        helper.make_node("If", ["no"], ["q"], **both),
        helper.make_node("Add", ["p", "q"], ["y"]),
    ]
    weights = {"w": ONES, "yes": np.array(True), "no": np.array(False)}
    built = build_module(write(tmp_path / "m.onnx", nodes, {"x": [4, 3]}, weights))
    product = built.args[0] @ torch.ones(3, 2)
    assert torch.allclose(built.module(*built.args), product.relu() - product)


def batch_norm(path: Path, module: nn.Module) -> Path:
    module.train()
    torch.onnx.export(
        module, (torch.randn(4, 3, 5, 5),), path, dynamo=True, optimize=False, verbose=False
    )
    return path


def test_batch_norm_keeps_pytorch_momentum_and_statistics(tmp_path: Path) -> None:
    """ONNX momentum 0.7 is PyTorch's 0.3; `train_bn` updates what the module updates."""
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=0.3, eps=1e-3))
    file = batch_norm(tmp_path / "m.onnx", module)
    before = copy.deepcopy(module)
    fixed = build_module(file)
    assert [w.code for w in fixed.warnings] == ["FB0654", "FB0631"]
    assert torch.equal(fixed.module(*fixed.args), before.eval()(*fixed.args))
    trained = build_module(file, train_bn=True)
    assert [w.code for w in trained.warnings] == ["FB0631"]
    assert torch.equal(trained.module(*trained.args), module(*trained.args))
    for name, buffer in trained.module.named_buffers():
        assert torch.equal(buffer, module.get_buffer(name))


def test_batch_norm_in_training_mode(tmp_path: Path) -> None:
    """A file may ask for batch statistics itself, and for the new ones as outputs."""
    node = helper.make_node(
        "BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1
    )
    rng = np.random.default_rng(0)
    weights = {n: rng.random(3, dtype=np.float32) for n in "sbmv"}
    outputs = ("y", "m2", "v2")
    file = write(tmp_path / "m.onnx", [node], {"x": [5, 3]}, weights, outputs=outputs)
    for train_bn in (False, True):
        built = build_module(file, train_bn=train_bn)
        assert [w.code for w in built.warnings] == ["FB0631"]
        x = built.args[0]
        y, mean, _ = built.module(x)
        s, b, m, _ = (torch.from_numpy(weights[n]) for n in "sbmv")
        assert torch.allclose(mean, 0.9 * m + 0.1 * x.mean(0))
        wanted = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() * s + b
        assert torch.allclose(y, wanted, atol=1e-6)
        assert torch.equal(built.module.get_buffer("m"), mean)


def test_train_bn_without_batch_norm_is_a_warning(tmp_path: Path) -> None:
    built = build_module(linear(tmp_path / "m.onnx"), train_bn=True)
    assert [w.code for w in built.warnings] == ["FB0655", "FB0631"]


def test_folded_batch_norms_are_named(tmp_path: Path) -> None:
    """The default exporter multiplies BatchNorm into the convolution before it."""
    module, args, _ = SMALL["resnet"](torch.float32)
    torch.onnx.export(module, args, tmp_path / "m.onnx", dynamo=True, verbose=False)
    built = build_module(tmp_path / "m.onnx")
    text = " ".join(w.message for w in built.warnings if w.code in ("FB0650", "FB0657"))
    assert "folded away" in text
    lost = dict(module.named_parameters()).keys() - dict(built.module.named_parameters()).keys()
    assert lost
    assert any(f'"{name}"' in text for name in lost)


def test_made_up_names_and_shared_vectors_are_warned_about(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "val_12"], ["a"]),
        helper.make_node("Add", ["a", "ln.bias"], ["b"]),
        helper.make_node("Add", ["b", "ln.bias"], ["y"]),
    ]
    weights = {"val_12": ONES, "ln.bias": np.ones(2, np.float32)}
    built = build_module(write(tmp_path / "m.onnx", nodes, {"x": [4, 3]}, weights))
    messages = {w.code: w.message for w in built.warnings}
    assert set(messages) == {"FB0652", "FB0653", "FB0631"}
    assert '"val_12"' in messages["FB0652"]
    assert '"ln.bias"' in messages["FB0653"]


def test_attention_dropout_that_the_exporter_left_out(tmp_path: Path) -> None:
    module, args, _ = SMALL["gpt"](torch.float32)
    export_trainable(module, args, tmp_path / "m.onnx")
    assert "FB0656" in [w.code for w in build_module(tmp_path / "m.onnx").warnings]
    export_trainable(no_dropout(module), args, tmp_path / "n.onnx")
    assert build_module(tmp_path / "n.onnx").warnings == ()


def test_dropout_draws_from_the_generator(tmp_path: Path) -> None:
    node = helper.make_node("Dropout", ["a", "p", "on"], ["y"])
    product = helper.make_node("MatMul", ["x", "w"], ["a"])
    weights = {"w": ONES, "p": np.array(0.5, np.float32), "on": np.array(True)}
    built = build_module(write(tmp_path / "m.onnx", [product, node], {"x": [64, 3]}, weights))
    torch.manual_seed(0)
    first = built.module(*built.args)
    torch.manual_seed(0)
    assert torch.equal(first, built.module(*built.args))
    assert not torch.equal(first, built.module(*built.args))
    assert 30 < int((first == 0).sum()) < 98


def test_export_keeps_every_parameter(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 1))
    for layer in module:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    export_trainable(module, (torch.randn(2, 3),), tmp_path / "m.onnx")
    stored = {t.name: t for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    for name, parameter in module.named_parameters():
        assert np.array_equal(numpy_helper.to_array(stored[name]), parameter.detach().numpy())


def test_doubles_are_recovered_from_singles() -> None:
    assert decimal_float(float(np.float32(1e-5))) == 1e-5
    text = "mul.Tensor](args = (%pow_1, 0.3535533905932738), kwargs = {scale: -1.5e-07, k: 3})"
    assert literals_of(text) == (0.3535533905932738, -1.5e-07)
    assert widened(float(np.float32(0.3535533905932738)), literals_of(text)) == 0.3535533905932738
    assert widened(float(np.float32(0.044715)), ()) == 0.044715
    assert widened(-np.inf, (-1.7976931348623157e308,)) == -1.7976931348623157e308


def test_exporting_needs_onnxscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compile.capture.onnx.exporter.export.find_spec", lambda name: None)
    diagnostic = refusal(lambda: export_trainable(nn.Linear(1, 1), (), tmp_path / "m.onnx"))
    assert diagnostic.code == "FB0617"
    assert not (tmp_path / "m.onnx").exists()


def test_the_documentation_lists_the_table() -> None:
    text = (ROOT / "docs" / "reference" / "onnx.md").read_text(encoding="utf-8")
    section = text.split("<!-- operators -->")[1]
    assert section.replace("\n", " ").strip().rstrip(".").split(", ") == [*own_operators()]


def test_the_package_loads_nothing_before_it_is_used() -> None:
    code = (
        "import sys, remat_compile.capture.onnx; "
        "print(sorted({'torch', 'onnx', 'onnxscript'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torchdynamo_sees_through_an_imported_module(tmp_path: Path) -> None:
    """No FB0531: what a node computes of its attributes is known before the forward runs."""
    path = tmp_path / "net.onnx"
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Flatten())
    export_trainable(net.train(), (torch.zeros(2, 3, 8, 8),), path)
    model = build_module(path, train_bn=True)
    guards = guards_of_call(model.module, model.args, {})
    assert guards.by_dynamo is not None, guards.why_none
