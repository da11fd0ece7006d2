"""The same models from ONNX files: bit-equal to the module that the file becomes, and
equal to the original torch model up to rounding (without dropout, with `train_bn`)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.execution.captures import BUDGETS, TIGHT, Captured, capture
from helpers.models import BASE, export_onnx
from helpers.slow import default_only
from helpers.training import Record, train_steps
from remat_compile.capture.onnx import build_module

DTYPES = {"f32": torch.float32, "f64": torch.float64}
TOLERANCE = {"f32": 1e-5, "f64": 1e-12}
"""Of the largest gradient."""


def captured(
    name: str, dtype: str, folder: Path, budgets: Iterable[str]
) -> tuple[Captured, Record, nn.Module]:
    """The model of the file, captured, and three steps of the original without dropout."""
    path = folder / "model.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original, args, kwargs = export_onnx(name, path, DTYPES[dtype])
    flat = (*args, *kwargs.values())
    run = train_steps(original, args, kwargs)

    def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        return build_module(path, train_bn=True).module, flat, {}

    return capture(make, budgets), run, original


def named(grads: Mapping[str, Tensor | None], module: nn.Module) -> dict[str, Tensor]:
    """Gradients under every name of their parameter; files call tied ones as they like."""
    keys = {id(p): name for name, p in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    grad_of = {name: grads[keys[id(p)]] for name, p in every}
    return {name: g for name, g in grad_of.items() if g is not None}


def check_original(at: Captured, run: Record, original: nn.Module, tolerance: float) -> None:
    """The file's module, which plans are bit-equal to, trains as the original does."""
    ours = named(at.eager.steps[0].grads, at.module)
    theirs = named(run.steps[0].grads, original)
    assert set(ours) <= set(theirs)
    trained = {id(p) for n, p in original.named_parameters(remove_duplicate=False) if n in ours}
    assert len(trained) == len(list(original.parameters())), "a parameter is not trained"
    largest = max(float(g.abs().max()) for g in theirs.values())
    for name, gradient in ours.items():
        gap = float((gradient - theirs[name]).abs().max())
        assert gap <= tolerance * largest, f"{name}: off by {gap} of {largest}"
    for a, b in zip(at.eager.steps[0].outputs, run.steps[0].outputs, strict=True):
        assert float((a - b).abs().max()) <= 10 * tolerance * float(b.abs().max())
    running = [name for name in run.buffers if "running" in name]
    assert running or not any(isinstance(m, nn.BatchNorm2d) for m in original.modules())
    for name in running:
        a, b = at.eager.buffers[name], run.buffers[name]
        assert float((a - b).abs().max()) <= 10 * tolerance * float(b.abs().max()), name


CASES = [(name, dtype) for name in BASE for dtype in DTYPES]


@pytest.mark.parametrize(
    ("name", "dtype"),
    default_only(CASES, [("mlp", "f32")]),
)
def test_onnx(name: str, dtype: str, tmp_path: Path) -> None:
    budgets = BUDGETS if name == "mlp" else TIGHT
    at, run, original = captured(name, dtype, tmp_path, budgets)
    check_original(at, run, original, TOLERANCE[dtype])
    at.check()


@pytest.mark.parametrize(
    "name",
    default_only(
        ["gpt-loss", "resnet-loss", "unet-loss", "two-loss", "small-resnet-loss"],
        ["small-resnet-loss"],
    ),
)
def test_onnx_with_a_loss_node(name: str, tmp_path: Path) -> None:
    at, run, original = captured(name, "f32", tmp_path, ("range:0.7", "least"))
    check_original(at, run, original, TOLERANCE["f32"])
    at.check()
