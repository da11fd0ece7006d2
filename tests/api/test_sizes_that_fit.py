"""The largest size that fits, and the highest throughput, beside a search of all sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compile
from remat_compile.ir.diagnostics import FBError
from remat_compile.plans.budget import Baseline
from remat_compile.plans.fit.largest import GAP, SizeSearch
from remat_compile.plans.fit.room import in_bytes
from remat_compile.plans.fit.size_range import SizeRange
from remat_compile.plans.fit.sizes import SizedModel, sized_model
from remat_compile.plans.make import plan_costed
from remat_compile.plans.options import Errors
from remat_compile.plans.request import PlanRequest, read_request
from remat_compile.plans.run_planner import Phases
from remat_compile.plans.source import NO_OPTIONS

DEVICE = """
name = "small"
memory = "64GiB"
granularity = 512
memory_bandwidth = "20GB/s"
launch_overhead_us = {launch}
[flops]
f32 = 1e12
"""
LOW, HIGH = 1, 24


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU())))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x).square().mean()
        return made


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).chunk(3, dim=-1)
            x = x + torch.relu(out(torch.softmax(q @ k.transpose(1, 2), -1) @ v))
        return x.square().mean()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(16, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(5))
        self.mixed = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for norm, mixed in zip(self.norms, self.mixed, strict=True):
            x = x + F.silu(mixed(norm(x)))
        return x.square().mean()


MODELS = {
    "mlp": (Mlp, (32, 64), 5.0, 0.22),
    "attention": (Attention, (24, 32), 20.0, 0.25),
    "words": (Words, (12, 16), 1.0, 0.3),
}
"""Shapes of a sample, the microseconds of a launch, and the budget as a share of the largest size's
bytes."""


def asked(folder: Path, launch: float) -> PlanRequest:
    (folder / "small.toml").write_text(DEVICE.format(launch=launch))
    errors = Errors()
    device = str(folder / "small.toml")
    request = read_request(errors, planner="dtr{rounds=0}", device=device, costs="roofline")
    errors.raise_if_any()
    assert request is not None
    return request


def symbolic(name: str, folder: Path, request: PlanRequest) -> SizedModel:
    """The model with a symbol, in a text."""
    made, shape, _, _ = MODELS[name]
    batch = torch.export.Dim("batch", min=LOW, max=64)
    shapes = {"x": {0: batch}}
    plan = remat_compile.plan(
        made(), (torch.ones(8, *shape),), dynamic_shapes=shapes, planner="store-all",
        costs="roofline", device="t4", cache=False, progress=False,
    )  # fmt: skip
    plan.save(folder / "step.fbir")
    over = SizeRange("batch", LOW, HIGH)
    return sized_model(str(folder / "step.fbir"), request, NO_OPTIONS, over, Phases(None))


def exhaustive(model: SizedModel, request: PlanRequest, room: int) -> dict[int, int]:
    """Times by size, each planned by itself."""
    times = {}
    for size in range(LOW, HIGH + 1):
        try:
            plan = plan_costed(
                model.at(size), PlanRequest(request.planner, in_bytes(room)), Phases(None)
            )
        except FBError:
            continue
        times[size] = plan.trace.time_ns
    return times


@pytest.mark.parametrize("name", MODELS)
def test_throughput_is_within_a_hundredth_of_all_sizes(name: str, tmp_path: Path) -> None:
    _, _, launch, share = MODELS[name]
    request = asked(tmp_path, launch)
    model = symbolic(name, tmp_path, request)
    room = int(share * Baseline.of(model.at(HIGH)).peak_bytes)
    search = SizeSearch(model, request, lambda program: room, Phases(None))
    found = search.fastest()
    times = exhaustive(model, request, room)
    best = max(1e9 * size / ns for size, ns in times.items())
    assert found.per_s >= (1 - GAP) * best
    assert found.bound_per_s is not None
    assert found.bound_per_s >= best
    assert found.planned <= 14
    largest = SizeSearch(model, request, lambda program: room, Phases(None)).largest()
    assert largest.size == max(times)
    assert largest.size < HIGH
