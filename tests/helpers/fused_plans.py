"""A small model that is fused, and what a fused plan is held to."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.backends.torch.kernels import missing
from remat_compile.backends.torch.measure import measure_step
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.fusion.kernels import rounding
from remat_compile.verifier import ProvenPlan

needs_compiler = pytest.mark.skipif(
    missing(torch.device("cpu")) is not None, reason="no C++ compiler"
)


class Gated(nn.Module):
    def __init__(self, width: int = 16, inner: int = 64) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = torch.tanh(h) * torch.sigmoid(h) * 1.5 + h
        loss: Tensor = self.b(h).square().mean()
        return loss


def made(way: Any = "inductor", dtype: torch.dtype = torch.float32, **options: Any) -> Plan:
    torch.manual_seed(0)
    model, x = Gated().to(dtype), torch.randn(512, 16, dtype=dtype)
    return remat_compile.plan(
        model, (x,), planner="dtr", activation_budget="90%", fuse=way, **options
    )


def codes(plan: Plan) -> list[str]:
    return [d.code for d in plan.warnings]


def bound(plan: Plan) -> PlannedModule:
    """The step of a plan, of which nothing is warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = plan.bind()
    assert isinstance(step, PlannedModule)
    return step


def check_step(plan: Plan, limit: float) -> None:
    """Proven again, measured to the byte, and equal to eager up to rounding."""
    assert any(c.is_fused for c in plan.graph.cnodes)
    assert isinstance(plan.verify(), ProvenPlan)
    assert any(a.key == "fused" for a in plan.assuming)
    step = bound(plan)
    assert plan._exported is not None
    report = compare_step(plan, step, plan._exported, 1)
    assert report.max_difference <= limit == rounding(plan.program)
    assert plan.proven is not None
    use = measure_step(step, plan._exported.args)
    assert use.measured_bytes == use.predicted_bytes == plan.proven.device_bytes
