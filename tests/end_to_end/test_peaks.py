"""Memory: what is measured never exceeds what was proven, and is what was predicted."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch

from helpers.execution import captures
from helpers.models import BASE, LOSS_INSIDE, MODELS, VARIANTS
from helpers.slow import default_only
from helpers.training import outer_loss
from remat_compile import Plan
from remat_compile.backends.torch import Mark, PlannedModule, build, measure_regions, measure_step
from remat_compile.ir.graph import CALLER_KINDS
from remat_compile.ir.semantics.simulate import Sizes

CASES = [
    *((name, budget) for name in BASE for budget in ("range:1.0", "range:0.5")),
    *((name, "range:0.7") for name in LOSS_INSIDE),
    *((name, "range:0.5") for name in VARIANTS),
]
DEFAULT = [
    *((name, "range:0.5") for name in ("mlp", "two")),
    ("mlp", "range:1.0"),
    ("resnet-loss", "range:0.7"),
]
TOLERANCE = 0.01


@cache
def planned(name: str, budget: str) -> tuple[Plan, PlannedModule, tuple[Any, ...], dict[str, Any]]:
    """A plan with measured costs, bound, after one step (which fills PyTorch's caches)."""
    module, args, kwargs = MODELS[name](torch.float32)
    asked = {"budget": budget, "costs": "measured", "planner": "dtr"}
    with captures.planned(module, args, kwargs, **asked) as (plan, lowered):
        compiled = build(lowered.with_program(plan.program), plan.schedule)
    step(compiled, args, kwargs)
    for p in compiled.parameters():
        p.grad = None
    return plan, compiled, args, kwargs


def step(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    out = module(*args, **kwargs)
    torch.autograd.backward(outer_loss(out if isinstance(out, tuple) else (out,)))


def within(measured: int, predicted: int) -> bool:
    return abs(measured - predicted) <= TOLERANCE * predicted


@pytest.mark.parametrize(("name", "budget"), default_only(CASES, DEFAULT))
def test_measured_stays_within_the_bound(name: str, budget: str) -> None:
    plan, compiled, args, kwargs = planned(name, budget)
    assert plan.proven is not None
    assert plan.budget is not None
    proven = plan.proven.device_bytes
    assert proven <= plan.budget.bytes
    use = measure_step(compiled, args, kwargs)
    peaks = [
        ("forward", use.forward_measured_bytes, use.forward_predicted_bytes),
        ("backward", use.backward_measured_bytes, use.backward_predicted_bytes),
    ]
    if name in LOSS_INSIDE:
        peaks.append(("step", measured_step(plan, compiled, args, kwargs), plan.peak_bytes))
    for what, measured, predicted in peaks:
        note = f"{what}: measured {measured}, predicted {predicted}, proven {proven}"
        assert measured <= proven, note
        assert within(measured, predicted), note


def measured_step(
    plan: Plan, compiled: PlannedModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    """Device bytes from before the forward to after the backward, PyTorch's own wrappers
    included. Nothing is taken from the plan but what the caller holds."""
    for p in compiled.parameters():
        p.grad = None
    sizes = Sizes.of(plan.program).anode
    held = sum(sizes[a.name] for a in plan.graph.anodes if a.kind in CALLER_KINDS)

    def run(mark: Mark) -> None:
        with mark("step"):
            step(compiled, args, kwargs)

    _, uses = measure_regions(run)
    return held + uses["step"].peak_bytes_over_entry


def test_less_memory_than_eager() -> None:
    """The point of it all, by the profiler alone: a tight plan takes less than eager does."""
    plan, compiled, args, kwargs = planned("resnet-loss", "range:0.7")
    eager, _, _ = MODELS["resnet-loss"](torch.float32)
    step(eager, args, kwargs)
    for p in eager.parameters():
        p.grad = None

    def run(mark: Mark) -> None:
        with mark("ours"):
            step(compiled, args, kwargs)
        with mark("eager"):
            step(eager, args, kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, uses = measure_regions(run)
    ours, theirs = uses["ours"].peak_bytes_over_entry, uses["eager"].peak_bytes_over_entry
    saved = plan.baseline.peak_bytes - plan.peak_bytes
    assert theirs - ours >= 0.9 * saved
