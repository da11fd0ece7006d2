"""Plans with fused kernels on a GPU: eager's numbers up to rounding, within the proven bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.accelerator.offloaded import sample
from helpers.fused_plans import Gated
from helpers.models import BASE
from helpers.training import train_steps
from remat_compile.backends.torch import PlannedModule, measure_step
from remat_compile.backends.torch.kernels import missing
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.fusion.kernels import rounding
from remat_compile.verifier import ProvenPlan

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def whole_products() -> Iterator[None]:
    """Convolutions of cuDNN cut float32 to 10 bits otherwise: what a kernel rounds otherwise in
    the 23rd comes out of them in the 10th."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def fused(device: torch.device, name: str, budget: str, **options: Any) -> remat_compile.Plan:
    lacking = missing(device)
    if lacking is not None:
        pytest.skip(lacking)
    model, args, kwargs = sample(name, device)
    return remat_compile.plan(
        model,
        args,
        kwargs,
        planner="dtr",
        activation_budget=budget,
        fuse="inductor",
        time_limit_s=10.0,
        cache=False,
        **options,
    )


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize("budget", ["100%", "range:0.5"])
def test_fused_plans(gpu: torch.device, name: str, budget: str) -> None:
    """Kernels that Triton compiles: numbers, peak and proof of each step that has some."""
    plan = fused(gpu, name, budget)
    assert isinstance(plan.verify(), ProvenPlan)
    assert plan.proven is not None
    step = plan.bind()
    assert isinstance(step, PlannedModule)
    exported = plan._exported
    assert exported is not None
    report = compare_step(plan, step, exported, 1)
    regions = [c for c in plan.graph.cnodes if c.is_fused]
    assert regions, [d.message for d in plan.warnings]
    assert report.max_difference <= rounding(plan.program)
    assert report.measured_bytes <= plan.proven.device_bytes


@pytest.mark.parametrize("name", ["gpt-loss", "mlp-loss"])
def test_fused_plans_as_graphs(gpu: torch.device, name: str) -> None:
    """A kernel of Triton within a graph of the device computes what the model does, rounded
    otherwise: four steps of both, which train apart by less than a draw would bring."""
    eager = train_steps(*sample(name, gpu), steps=4)
    of = sample(name, gpu)
    graphed = fused(gpu, name, "range:0.5").bind(cuda_graph=True)
    assert isinstance(graphed, PlannedModule)
    assert any(c.is_fused for c in graphed.planned_step.program.graph.cnodes)
    recorded = train_steps(graphed, *of[1:], steps=4)
    graphs = graphed.planned_step.graphs
    assert graphs is not None
    assert graphs.replayed == 3
    for ours, theirs in zip(recorded.steps, eager.steps, strict=True):
        torch.testing.assert_close(ours.outputs, theirs.outputs, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ours.grads, theirs.grads, rtol=1e-3, atol=1e-4)


def test_fusing_is_faster_and_exact(gpu: torch.device) -> None:
    """`auto` takes a kernel that is measured faster, within the peak of the unfused plan; the
    allocator counts what is proven."""
    torch.manual_seed(0)
    model = Gated(256, 4096).to(gpu)  # a kernel is worth its launch
    x = torch.randn(8192, 256, device=gpu)
    state = torch.cuda.get_rng_state()
    asked: Any = {"planner": "dtr", "activation_budget": "90%", "cache": False}
    plain = remat_compile.plan(model, (x,), **asked)
    fused = remat_compile.plan(model, (x,), fuse="auto", **asked)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert any(c.is_fused for c in fused.graph.cnodes), [d.message for d in fused.warnings]
    assert fused.time_s < plain.time_s
    assert fused.peak_bytes <= plain.peak_bytes
    step = fused.bind()
    assert isinstance(step, PlannedModule)
    use = measure_step(step, (x,))
    assert fused.proven is not None
    assert use.measured_bytes == use.predicted_bytes == fused.proven.device_bytes


def test_a_tensor_that_begins_elsewhere(gpu: torch.device) -> None:
    """Code for CUDA would copy it, which is not in the bound: the region runs by its calls."""

    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(1024, 1024)

        def forward(self, x: Tensor) -> Tensor:
            loss: Tensor = self.a(torch.sin(x) * torch.cos(x) * x).square().mean()
            return loss

    model, flat = Waves().to(gpu), torch.randn(4096 * 1024 + 1, device=gpu)
    x = flat[: 4096 * 1024].view(4096, 1024)
    compiled = remat_compile.compile(
        model, (x,), planner="store-all", activation_budget="100%", fuse="inductor", cache=False
    )
    assert isinstance(compiled, PlannedModule)
    assert any(c.is_fused for c in compiled.planned_step.program.graph.cnodes)
    compiled(x).backward()
    other = flat[1:].view(4096, 1024)
    with pytest.warns(UserWarning, match=r"FB0915.*multiple of 16 bytes"):
        loss = compiled(other)
    torch.testing.assert_close(loss, model(other))
