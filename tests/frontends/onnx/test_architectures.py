"""Gradients of exported architectures against the original PyTorch models, in float32."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.models import BASE, FACTORIES, no_dropout
from helpers.paths import ROOT
from helpers.slow import default_only

sys.path.append(str(ROOT / "benchmarks"))  # behind the packages: it has a jax.py
bench: Any = import_module("onnx_gradients")

pytestmark = pytest.mark.filterwarnings("ignore")

ROUNDING = {"unet": 2e-6, "encdec": 2e-6}
"""Measured 1.2e-6 in float32 with one thread; in float64 (`test_gradients.py`) they agree to 1e-12
as all do, so it is rounding."""

HAND_WRITTEN = [name for name in BASE if name != "two"]
ONE_BLOCK = ["small-gpt", "small-llama", "small-resnet"]


class First(nn.Module):
    """The first result of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Any:
        result = self.model(*args)
        return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", default_only([*HAND_WRITTEN, *ONE_BLOCK], ONE_BLOCK))
def test_gradients_of_small_architectures(name: str, tmp_path: Path) -> None:
    module, args, _ = FACTORIES[name](torch.float32)
    no_dropout(module)
    output, gradient, count = bench.compare(First(module.eval()), args, tmp_path)
    assert count == len(list(module.parameters()))
    assert output <= bench.LIMIT
    assert gradient <= ROUNDING.get(name, bench.LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("name", bench.ARCHITECTURES)
def test_gradients_of_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the architectures are those of transformers")
    output, gradient, count = bench.compare(*bench.make(name), tmp_path)
    assert count >= 20
    assert output <= bench.LIMIT
    assert gradient <= bench.LIMIT
