"""The module made from a file against the module that was exported: values and gradients."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models import BASE, LOSS_INSIDE, export_onnx
from remat_compile.frontends.onnx import OnnxModel, build_module

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
    np.savez(path, **{n: a.detach().numpy() for n, a in zip(names, args, strict=True)})
    return path


def compare(original: nn.Module, args: tuple[Tensor, ...], built: OnnxModel, limit: float) -> None:
    """Outputs, every gradient (by name; tied ones are one) and every buffer agree."""
    reference, outputs = leaves(original(*args)), leaves(built.module(*args))
    for a, b in zip(reference, outputs, strict=True):
        assert (a - b).abs().max() <= limit * max(1.0, float(a.abs().max()))
    wanted, got = gradients(original, reference), gradients(built.module, outputs)
    tied = {n: id(p) for n, p in original.named_parameters(remove_duplicate=False)}
    found = {tied[name]: grad for name, grad in got.items()}
    largest = max(float(g.abs().max()) for g in wanted.values())
    assert len(found) == len(wanted)
    for name, grad in wanted.items():
        assert (grad - found[tied[name]]).abs().max() <= limit * largest, name
    buffers = dict(original.named_buffers())
    for name, buffer in built.module.named_buffers():
        if name in buffers:
            torch.testing.assert_close(buffer, buffers[name], rtol=limit, atol=limit)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", [*BASE, *LOSS_INSIDE])
def test_gradients_equal_those_of_the_exported_module(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    module, args, _ = export_onnx(name, tmp_path / "m.onnx", dtype)
    inputs = tuple(f"input_{i}" for i in range(len(args)))
    sample = write_sample(tmp_path / "s.npz", inputs, args)
    built = build_module(tmp_path / "m.onnx", sample=sample, train_bn="resnet" in name)
    assert built.arg_names == inputs
    compare(module, args, built, LIMIT[dtype])
