"""`--fuse`: what it refuses, and a fused plan from the command line to a step that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.cli import Cli
from remat_compile.backends.torch.kernels import missing

MODEL = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh(h) * torch.sigmoid(h) * 1.5 + h)

def make():
    torch.manual_seed(0)
    return Gated(), (torch.randn(512, 16),)
"""


@pytest.mark.slow
@pytest.mark.skipif(missing(torch.device("cpu")) is not None, reason="no C++ compiler")
def test_a_fused_plan_runs(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    plan, model = tmp_path / "plan.fbir", f"{tmp_path / 'net.py'}:make"
    ran = cli(model, "-o", plan, "--planner", "dtr", "--fuse", "inductor")
    assert ran.code == 0, ran.err
    assert "warning[FB0470]" in ran.err
    assert "bits may differ by rounding inside" in ran.out
    ran = cli("run", plan, "--model", model, "--repeats", "1")
    assert ran.code == 0, ran.err + ran.out
    assert "fused cNodes may differ by rounding" in ran.out or "bit-equal" in ran.out
    ran = cli("verify", plan, "--model", model)
    assert ran.code == 0
    assert "each the composition of the model's calls" in ran.out
