"""The same models from ONNX files: bit-equal to the module that the file becomes, and
equal to the original torch model up to rounding (without dropout, with `train_bn`)."""

from __future__ import annotations

import logging
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from capture import BUDGETS, Captured, capture
from torch import Tensor, nn

from harness import assert_bit_equal, outer_loss
from models import BASE, LOSS_INSIDE, export_onnx
from remat_compile.frontends.onnx import build_module
from remat_compile.planners.registry import parse_planner

DTYPES = {"f32": torch.float32, "f64": torch.float64}
TOLERANCE = {"f32": 1e-5, "f64": 1e-12}
"""Of the largest gradient."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


@lru_cache(maxsize=1)
def captured(name: str, dtype: str, folder: Path) -> tuple[Captured, nn.Module]:
    """The model of the file, captured, and the original torch model without dropout."""
    path = folder / f"{name}-{dtype}.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original, args, kwargs = export_onnx(name, path, DTYPES[dtype])
    flat = (*args, *kwargs.values())
    return capture(lambda: (build_module(path, train_bn=True).module, flat, {})), original


def check(name: str, dtype: str, budget: str, folder: Path) -> None:
    at, _ = captured(name, dtype, folder)
    bound = at.budget(budget)
    plan = at.plan(bound, parse_planner("dtr" if budget == "least" else "auto"))
    assert plan.peak_bytes <= bound.bytes
    assert_bit_equal(at.train(plan), at.eager)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BASE)
def test_bit_equal_to_the_lowered_module(name: str, dtype: str, budget: str, folder: Path) -> None:
    check(name, dtype, budget, folder)


@pytest.mark.parametrize("budget", ["range:0.5", "least"])
@pytest.mark.parametrize("name", LOSS_INSIDE)
def test_bit_equal_with_a_loss_node(name: str, budget: str, folder: Path) -> None:
    check(name, "f32", budget, folder)


def gradients(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Tensor]:
    """By every name of each parameter; the file may know a tied one by another name."""
    module.zero_grad(set_to_none=True)
    out = module(*args)
    torch.autograd.backward(outer_loss(out if isinstance(out, tuple) else (out,)))
    named = module.named_parameters(remove_duplicate=False)
    return {name: p.grad for name, p in named if p.grad is not None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BASE)
def test_equal_to_the_original(name: str, dtype: str, folder: Path) -> None:
    at, original = captured(name, dtype, folder)
    plan = at.plan(at.budget("range:0.5"), parse_planner("auto"))
    at.module.load_state_dict(at.state)
    compiled = plan.bind()
    ours, theirs = gradients(compiled, at.args), gradients(original, at.args)
    assert set(ours) <= set(theirs)
    named = original.named_parameters(remove_duplicate=False)
    held = {p.data_ptr() for n, p in named if n in ours}
    assert held == {p.data_ptr() for p in original.parameters()}, "a parameter is not trained"
    largest = max(float(g.abs().max()) for g in theirs.values())
    for key, gradient in ours.items():
        gap = float((gradient - theirs[key]).abs().max())
        assert gap <= TOLERANCE[dtype] * largest, f"{key}: off by {gap} of {largest}"
    buffers = dict(original.named_buffers())
    for key, buffer in compiled.named_buffers():
        if key in buffers and buffer.is_floating_point():
            gap = float((buffer - buffers[key]).abs().max())
            assert gap <= TOLERANCE[dtype], f"buffer {key}: off by {gap}"
