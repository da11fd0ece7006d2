"""Plans with fusion, from a model to a step that runs: bytes, bits, and what is told."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import check_step, codes, made, needs_compiler


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
