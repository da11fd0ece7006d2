"""What an export says about training: frozen and tied parameters, cut gradients, padding rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from helpers.onnx_files import linear, refusal, write
from remat_compile.capture.onnx import OnnxModel, build_module, export_trainable
from remat_compile.capture.onnx.exporter.record import TRAINING, training_record

pytestmark = pytest.mark.filterwarnings("ignore")


class Everything(nn.Module):
    """A padded table tied to the head, a frozen layer, a `detach`, and a `no_grad` region."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=2)
        self.frozen = nn.Linear(6, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.frozen.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        y = self.frozen(x)
        with torch.no_grad():
            gate = self.mix(y).sigmoid()
        target = self.mix(x).detach() * 2
        out: Tensor = self.head(self.mix(y) * gate + target)
        return out


def exported(module: nn.Module, ids: Tensor, folder: Path, **options: Any) -> OnnxModel:
    export_trainable(module, (ids,), folder / "m.onnx", **options)
    (name,) = (value.name for value in onnx.load(folder / "m.onnx").graph.input)
    arrays: dict[str, Any] = {name: ids.numpy()}
    np.savez(folder / "s.npz", **arrays)
    return build_module(folder / "m.onnx", sample=folder / "s.npz")


def everything() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Everything(), torch.tensor([[2, 5, 2, 7], [0, 2, 9, 1]])


@pytest.mark.parametrize("fold", [True, False])
def test_gradients_are_those_of_the_original(fold: bool, tmp_path: Path) -> None:
    module, ids = everything()
    built = exported(module, ids, tmp_path, fold=fold)
    assert built.warnings == ()
    weights = torch.randn(2, 4, 11)
    wanted, got = module(ids), built.module(ids)
    torch.testing.assert_close(got, wanted)
    (wanted * weights).sum().backward()
    (got * weights).sum().backward()
    parameters = dict(built.module.named_parameters(remove_duplicate=False))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        assert parameters[name].requires_grad == parameter.requires_grad, name
        if parameter.grad is not None:
            torch.testing.assert_close(parameters[name].grad, parameter.grad, rtol=1e-6, atol=1e-6)


def test_every_part_of_the_record_matters(tmp_path: Path) -> None:
    """Without the record, each of the four gives other gradients: the test above can fail."""
    module, ids = everything()
    exported(module, ids, tmp_path)
    model = onnx.load(tmp_path / "m.onnx")
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, tmp_path / "bare.onnx")
    built = build_module(tmp_path / "bare.onnx", sample=tmp_path / "s.npz")
    module(ids).sum().backward()
    built.module(ids).sum().backward()
    parameters = dict(built.module.named_parameters())
    assert parameters["frozen.weight"].requires_grad
    for name in ("mix.weight", "head.weight"):
        wanted = module.get_parameter(name).grad
        assert wanted is not None
        assert not torch.allclose(parameters[name].grad, wanted)
    (warning,) = (w for w in built.warnings if w.code == "FB0631")
    assert "frozen" in warning.message
    assert "detach" in warning.message
    assert '"head.weight" are padding' in warning.message


def test_the_padding_row_gets_no_gradient(tmp_path: Path) -> None:
    table = nn.Embedding(7, 3, padding_idx=-1)
    ids = torch.tensor([6, 1, 6])
    built = exported(table, ids, tmp_path)
    built.module(ids).sum().backward()
    grad = built.module.get_parameter("weight").grad
    assert grad is not None
    assert grad[6].eq(0).all()
    assert grad[1].eq(1).all()


def test_tied_parameters_are_one_under_both_names(tmp_path: Path) -> None:
    module, ids = everything()
    built = exported(module, ids, tmp_path)
    assert built.module.get_parameter("table.weight") is built.module.get_parameter("head.weight")
    module.load_state_dict(built.module.state_dict(), strict=True)


def test_a_record_may_tie_what_the_file_holds_twice(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "a"], ["p"]), helper.make_node("Mul", ["p", "b"], ["y"])]
    one = np.ones(3, np.float32)
    file = write(tmp_path / "m.onnx", nodes, {"x": [3]}, {"a": one, "b": one})
    record(file, '{"frozen": [], "ties": {"b": "a"}, "cuts": true}')
    built = build_module(file)
    assert len(list(built.module.parameters())) == 1
    built.module(*built.args).sum().backward()
    torch.testing.assert_close(built.module.get_parameter("b").grad, 2 * built.args[0])


def record(file: Path, text: str) -> None:
    model = onnx.load(file)
    model.metadata_props.add(key=TRAINING, value=text)
    onnx.save(model, file)


@pytest.mark.parametrize("text", ["{", "[]", '{"frozen": 1}', '{"frozen": [], "ties": {"a": 1}}'])
def test_a_record_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx")
    record(file, text)
    diagnostic = refusal(lambda: build_module(file))
    assert diagnostic.code == "FB0619"
    assert TRAINING in diagnostic.message


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.a(x)
            with torch.enable_grad():
                z = self.b(y)
        return z + y


@pytest.mark.parametrize("outside", [True, False])
def test_regions_within_regions(outside: bool, tmp_path: Path) -> None:
    """Gradients switched on again inside, and an export that runs with gradients off."""
    module, x = Nested(), torch.ones(1, 2)
    with torch.set_grad_enabled(outside):
        built = exported(module, x, tmp_path)
    module(x).sum().backward()
    built.module(x).sum().backward()
    for name, parameter in module.named_parameters():
        gradient = built.module.get_parameter(name).grad
        assert (gradient is None) == (parameter.grad is None), name
        if gradient is not None:
            torch.testing.assert_close(gradient, parameter.grad)


def test_what_cannot_be_captured_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compile.capture.onnx.exporter.export.captured", lambda *given: None)
    export_trainable(Nested(), (torch.ones(1, 2),), tmp_path / "m.onnx")
    recorded = training_record(onnx.load(tmp_path / "m.onnx"))
    assert recorded is not None
    assert not recorded.cuts
    (warning,) = (w for w in build_module(tmp_path / "m.onnx").warnings if w.code == "FB0631")
    assert "detach" in warning.message
    assert "frozen" not in warning.message


def test_weights_in_constant_nodes_are_trained_and_told(tmp_path: Path) -> None:
    """SqueezeNet of the onnx package: ConstantOfShape convolutions."""
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [2, 1, 1], [2.0, 3.0])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["conv_w"], value=value),
        helper.make_node("Constant", [], ["scale"], value=scale),
        helper.make_node("Conv", ["x", "conv_w", "bias"], ["a"]),
        helper.make_node("Mul", ["a", "scale"], ["y"]),
    ]
    weights = {"shape": np.array([2, 3, 1, 1]), "bias": np.zeros(2, np.float32)}
    file = write(tmp_path / "m.onnx", nodes, {"x": [1, 3, 4, 4]}, weights)
    built = build_module(file)
    assert {n for n, _ in built.module.named_parameters()} == {"conv_w", "bias"}
    assert built.module.get_parameter("conv_w").shape == (2, 3, 1, 1)
    (warning,) = (w for w in built.warnings if w.code == "FB0630")
    assert 'trained: "conv_w"' in warning.message
    assert 'not trained: "scale"' in warning.message
    named = build_module(file, trainable=["scale"])
    assert {n for n, _ in named.module.named_parameters()} == {"scale"}
    named.module(*named.args).sum().backward()
    assert named.module.get_parameter("scale").grad is not None
