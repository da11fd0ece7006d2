"""A fused plan takes no more bytes than the plan it was made from, and no more time. Times are
computed and kernels priced by their bytes: no machine counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.slow import default_only
from remat_compile import Plan
from remat_compile.backends.torch import kernels
from remat_compile.backends.torch.kernels import InductorPrice, missing
from remat_compile.backends.torch.kernels.price import KernelCost
from remat_compile.costs import load_device, roofline
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.plans import make as make_plan
from remat_compile.plans.fusion.ways import FusedWay, in_order
from remat_compile.verifier import ProvenPlan

needs_compiler = pytest.mark.skipif(
    missing(torch.device("cpu")) is not None, reason="no C++ compiler"
)


class Block(nn.Module):
    """A gated layer after a root-mean-square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        made: Tensor = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return made


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(32), Block(32))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(x).square().mean()
        return made


def computed(lowered: Any) -> Program:
    program: Program = lowered.program
    timed = roofline(program, load_device("cpu"))
    return replace(program, graph=timed.graph, header=timed.header)


class ByBytes(InductorPrice):
    """Kernels that nobody compiles: what they read and write, at 20 GB/s."""

    def cost(self, c: CNode) -> KernelCost | None:
        tensors = [self.values[name] for name in (*c.call.refs(), *c.results)]
        return KernelCost(5000 + sum(t.numel() * t.element_size() for t in tensors) // 20, 0)


@needs_compiler
@pytest.mark.parametrize(
    "budget", default_only(["range:0.8", "range:0.7", "range:0.5"], ["range:0.7"])
)
def test_no_fused_plan_takes_more_than_its_own_plan(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_plan, "_measured", computed)
    monkeypatch.setattr(kernels, "InductorPrice", ByBytes)
    model, x = Stack(), torch.randn(256, 32)

    def plan(way: str) -> Plan:
        return remat_compile.plan(
            model, (x,), activation_budget=budget, planner="dtr", fuse=way, cache=False
        )

    fused, unfused = plan("auto"), plan("none")
    assert any(c.is_fused for c in fused.graph.cnodes)
    assert fused.time_s < unfused.time_s
    assert fused.peak_bytes <= unfused.peak_bytes
    assert fused.activation_peak_bytes <= unfused.activation_peak_bytes
    assert isinstance(fused.verify(), ProvenPlan)


def way(ms: float, mb: float) -> FusedWay:
    made: Any = f"{ms} ms, {mb} MB"
    return FusedWay(made, round(ms * 1e6), (round(mb * 10**6), round(mb * 10**6)))


def test_of_plans_about_as_fast_that_with_the_lowest_peak_comes_first() -> None:
    ways = [way(100, 90), way(100.18, 70), way(100.22, 40), way(100.1, 80)]
    assert in_order(ways) == [ways[1], ways[3], ways[0], ways[2]]
    assert in_order([]) == []
