"""The module made from a file against the module that was exported: values and gradients."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from helpers.models import BASE, FACTORIES, MODELS, export_onnx, no_dropout
from helpers.slow import default_only
from remat_compile.capture.onnx import OnnxModel, build_module, export_trainable

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


def leaves(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def gradients(module: nn.Module, outputs: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of a fixed random combination of the outputs."""
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outputs]
    torch.autograd.backward(outputs, weights)
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def write_sample(path: Path, names: tuple[str, ...], args: tuple[Tensor, ...]) -> Path:
    arrays: dict[str, Any] = {n: a.detach().numpy() for n, a in zip(names, args, strict=True)}
    np.savez(path, **arrays)
    return path


def compare(original: nn.Module, args: tuple[Tensor, ...], built: OnnxModel, limit: float) -> None:
    """Outputs, every gradient (by name; tied ones are one) and every buffer agree."""
    reference, outputs = leaves(original(*args)), leaves(built.module(*args))
    for a, b in zip(reference, outputs, strict=True):
        assert (a - b).abs().max() <= limit * max(1.0, float(a.abs().max()))
    wanted, got = gradients(original, reference), gradients(built.module, outputs)
    tied = {n: id(p) for n, p in original.named_parameters(remove_duplicate=False)}
    grads = {tied[name]: grad for name, grad in got.items()}
    largest = max(float(g.abs().max()) for g in wanted.values())
    assert len(grads) == len(wanted)
    for name, grad in wanted.items():
        assert (grad - grads[tied[name]]).abs().max() <= limit * largest, name
    buffers = dict(original.named_buffers())
    for name, buffer in built.module.named_buffers():
        if name in buffers:
            torch.testing.assert_close(buffer, buffers[name], rtol=limit, atol=limit)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


LOSSES = ("mlp-loss", "gpt-loss", "resnet-loss")
CASES = [(n, torch.float64) for n in BASE] + [(n, torch.float32) for n in LOSSES]


ELSEWHERE_TOO = (
    *("mlp", "resnet", "mlp-loss", "gpt-loss", "resnet-loss"),
    *("gpt", "llama", "encdec", "vit"),
)
"""Left to `make check`: `end_to_end/test_onnx.py` and `test_architectures.py` compare such models
in every run."""


@pytest.mark.parametrize(
    ("name", "dtype"), default_only(CASES, [c for c in CASES if c[0] not in ELSEWHERE_TOO])
)
def test_gradients_equal_those_of_the_exported_module(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    module, args, _ = export_onnx(name, tmp_path / "m.onnx", dtype)
    inputs = tuple(f"input_{i}" for i in range(len(args)))
    sample = write_sample(tmp_path / "s.npz", inputs, args)
    built = build_module(tmp_path / "m.onnx", sample=sample, train_bn="resnet" in name)
    assert built.arg_names == inputs
    compare(module, args, built, LIMIT[dtype])


class Bert(nn.Module):
    """Two tables, a norm, one encoder layer with a padding mask, a tied head; masked-token loss."""

    def __init__(self, width: int = 16, vocab: int = 37) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.places = nn.Embedding(12, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocab)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.places(places))
        q, k, v = (p.unflatten(-1, (2, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        attended = nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2)
        x = self.norm(x + self.out(attended.flatten(2)))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        logits = self.head(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, logits


@pytest.mark.parametrize("dtype", default_only([torch.float32, torch.float64], [torch.float32]))
def test_bert_with_padding_and_ignored_labels(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Bert().to(dtype)
    ids = torch.randint(0, 37, (3, 9))
    labels = torch.where(torch.rand(3, 9) < 0.5, -100, ids)
    mask = (torch.arange(9) < torch.tensor([[9], [7], [4]])).long()
    args = (ids, mask, labels)
    export_trainable(module, args, tmp_path / "m.onnx")
    sample = write_sample(tmp_path / "s.npz", ("ids", "mask", "labels"), args)
    built = build_module(tmp_path / "m.onnx", sample=sample)
    compare(module, args, built, LIMIT[dtype])


@pytest.mark.parametrize("name", default_only(["gpt", "small-gpt", "vit"], ["small-gpt"]))
def test_a_default_export_is_repaired(name: str, tmp_path: Path) -> None:
    """Merged, dropped and transposed parameters come back; what is gone is named."""
    module, args, _ = FACTORIES[name](torch.float32)
    no_dropout(module)
    torch.onnx.export(module, args, tmp_path / "m.onnx", dynamo=True, verbose=False)
    sample = write_sample(tmp_path / "s.npz", built_names(tmp_path / "m.onnx"), args)
    built = build_module(tmp_path / "m.onnx", sample=sample)
    codes = {w.code: w.message for w in built.warnings}
    assert "FB0651" in codes
    lost = codes.get("FB0650", "") + codes.get("FB0657", "")
    wanted = gradients(module, leaves(module(*args)))
    got = gradients(built.module, leaves(built.module(*args)))
    largest = max(float(g.abs().max()) for g in wanted.values())
    tied = {n: id(p) for n, p in module.named_parameters(remove_duplicate=False)}
    grads = {tied[n]: g for n, g in got.items()}
    for parameter, grad in wanted.items():
        if tied[parameter] in grads:
            assert (grad - grads[tied[parameter]]).abs().max() <= 1e-5 * largest, parameter
        else:
            assert f'"{parameter}"' in lost
    assert len(grads) >= len(wanted) - 2


def built_names(path: Path) -> tuple[str, ...]:
    return tuple(v.name for v in onnx.load(path).graph.input)


@pytest.mark.parametrize("opset", default_only([18, 23], [18]))
def test_other_opsets(opset: int, tmp_path: Path) -> None:
    """Opset 23 has Attention, RMSNormalization and RotaryEmbedding as operators."""
    module, args, _ = FACTORIES["small-llama" if opset == 18 else "llama"](torch.float64)
    export_trainable(module, args, tmp_path / "m.onnx", opset_version=opset)
    names = built_names(tmp_path / "m.onnx")
    built = build_module(tmp_path / "m.onnx", sample=write_sample(tmp_path / "s.npz", names, args))
    compare(module, args, built, 1e-12)


def test_dynamic_batch(tmp_path: Path) -> None:
    module, (x,), _ = MODELS["mlp"](torch.float64)
    batch = torch.export.Dim("batch", min=1, max=512)
    file = tmp_path / "m.onnx"
    export_trainable(module, (x,), file, dynamic_shapes=({0: batch},))
    built = build_module(file, dims={"batch": "5"})
    assert built.args[0].shape == (5, 16)
    assert built.dims == {"batch": 5}
    compare(module, built.args, built, 1e-12)
