"""Plans with fusion, from a model to a step that runs: bytes, bits, and what is told."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import check_step, codes, made, needs_compiler
from helpers.slow import default_only
from remat_compile import Plan
from remat_compile.backends.torch import kernels
from remat_compile.backends.torch.kernels import InductorPrice
from remat_compile.backends.torch.kernels.price import KernelCost
from remat_compile.costs import load_device, roofline
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.plans import make as make_plan
from remat_compile.plans.fusion.ways import FusedWay, in_order
from remat_compile.verifier import ProvenPlan


@needs_compiler
def test_a_fused_plan_runs_within_its_bound(tmp_path: Path) -> None:
    plan, unfused = made(), made("none")
    assert codes(plan) == ["FB0470"]
    assert "bits may differ" in plan.warnings[0].message
    assert codes(unfused) == []
    assert plan.peak_bytes <= unfused.peak_bytes
    check_step(plan, 1e-5)
    plan.save(tmp_path / "plan.fbir")
    read = remat_compile.load(tmp_path / "plan.fbir")
    assert read.graph == plan.graph
    assert plan._exported is not None
    check = read.check_model(plan._exported.original, plan._exported.args)
    assert "each the composition of the model's calls" in check.assumption


class Turned(nn.Module):
    """The halves of each row turned, as for positions in attention."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        left, right = h.chunk(2, -1)
        return (h * torch.cat((-right, left), -1)).square().mean()


@needs_compiler
def test_what_no_tag_tells_is_taken_into_kernels() -> None:
    torch.manual_seed(0)
    model, x = Turned(), torch.randn(512, 16)
    plan, unfused = (
        remat_compile.plan(model, (x,), planner="store-all", fuse=way)
        for way in ("inductor", "none")
    )
    regions = [inner.call.op for c in plan.graph.cnodes for inner in c.call.region]
    assert {"aten.cat.default", "aten.slice_backward.default"} & {*regions}
    assert "aten.cat.default" in regions
    assert plan.peak_bytes < unfused.peak_bytes
    check_step(plan, 1e-5)


class Spectral(nn.Module):
    """`imag` of a conjugate is a view that is only marked as negated."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.rfft(self.a(torch.tanh(x) * torch.sigmoid(x))).conj().imag
        return (torch.tanh(z) * torch.sigmoid(z) + z).square().mean()


@needs_compiler
def test_what_is_only_marked_as_negated_gives_the_same_values() -> None:
    """Inside the step, where no kernel is made for it, and as its argument."""
    torch.manual_seed(0)
    model, x = Spectral(), torch.randn(64, 16)
    plan = remat_compile.plan(model, (x,), planner="store-all", fuse="inductor")
    assert any(c.is_fused for c in plan.graph.cnodes)
    step = plan.bind()
    for argument in (x, torch._neg_view(x)):
        model.zero_grad()
        wanted = model(argument)
        wanted.backward()
        gradients = [p.grad for p in model.parameters()]
        model.zero_grad()
        if argument is x:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loss = step(argument)
        else:
            with pytest.warns(UserWarning, match="FB0915.*only marked as negated"):
                loss = step(argument)
        loss.backward()
        torch.testing.assert_close(loss, wanted)
        for p, gradient in zip(step.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sigmoid() * x.tanh() * 1.5


@needs_compiler
def test_kernels_run_where_a_gradient_is_expanded() -> None:
    """They are made for the layout of the result, and the copy into it was counted."""
    x = torch.randn(512, 64)
    plan = remat_compile.plan(_Layer(), (x,), planner="store-all", fuse="inductor")
    assert any(c.is_fused and c.phase == "bwd" for c in plan.graph.cnodes)
    step = plan.bind()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(x).sum().backward()
    with pytest.warns(UserWarning, match="FB0918.*is copied before the backward"):
        step(x).backward(torch.randn(64, 512).T)


# -- A fused plan takes no more bytes than the plan it was made from, and no mor ------------------


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
