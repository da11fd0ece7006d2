"""A step beside eager where one of them does not repeat its own bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.plans.compare.step import (
    StepReport,
    StepRunner,
    compare_step,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return remat_compile.plan(model, (torch.randn(3, 4),), planner="store-all")


def compared(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, *, ours: bool | None, noise: Sequence[float]
) -> StepReport:
    """The report where the gradients of one side, or of both, get `noise`, the last for ever."""
    left, run = list(noise), StepRunner.run

    def noisy(self: StepRunner, *given: object) -> dict[str, Tensor]:
        values = run(self, *given)  # type: ignore[arg-type]
        if ours in (None, isinstance(self.module, PlannedModule)):
            more = left.pop(0) if len(left) > 1 else left[0]
            values = {n: t + more if n.startswith("gradient") else t for n, t in values.items()}
        return values

    module = plan.bind()
    monkeypatch.setattr(StepRunner, "run", noisy)
    assert plan._exported is not None
    return compare_step(plan, module, plan._exported, repeats=1)


@pytest.mark.parametrize("ours", [True, False])
def test_what_changes_from_step_to_step_does_not_count(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    report = compared(plan, monkeypatch, ours=ours, noise=[1e-5, 0.0])
    assert report.bit_equal
    assert report.irreproducible == 4
    assert 0 < report.max_difference < 1e-3


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("noise", [[1e-5], [nan], [1e3, 0.0]])
def test_what_repeats_or_is_far_counts(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, ours: bool, noise: list[float]
) -> None:
    report = compared(plan, monkeypatch, ours=ours, noise=noise)
    if not ours and noise == [1e3, 0.0]:  # eager's own spread is as large
        assert report.bit_equal
    else:
        assert not report.bit_equal
        assert report.irreproducible == 0


def test_no_number_equals_no_number(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    report = compared(plan, monkeypatch, ours=None, noise=[nan])
    assert report.bit_equal
    assert report.irreproducible == 0
    assert report.max_difference == 0.0


@pytest.mark.parametrize(("device", "lines"), [("cpu", 1), ("cuda:0", 2)])
def test_more_than_proven_is_told_with_what_the_allocator_adds(device: str, lines: int) -> None:
    report = StepReport(3 << 20, 4 << 20, 0.1, 0.1, bit_equal=True, max_difference=0.0, tensors=3)
    assert report.above(3 << 20, device) == []
    said = report.above(2 << 20, device)
    assert len(said) == lines
    assert "by 1.00 MiB" in said[0]
    assert ("expandable_segments:True" in said[-1]) == (lines == 2)
