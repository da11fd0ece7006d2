"""Plans of `hiremate` as they run: each bit as in eager, and memory as proven."""

from __future__ import annotations

import pytest
import torch

import remat_compile
from helpers.models import MODELS
from helpers.slow import default_only
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, measure_step

PLANNER = "hiremate{children=8, leaf=12, options=3, peaks=2, saves=2}"
TOLERANCE = 0.01
CASES = [("encdec", "range:0.3"), ("unet", "range:0.3")]


@pytest.mark.parametrize(("name", "budget"), default_only(CASES, [("unet", "range:0.3")]))
def test_a_plan_runs_as_it_says(name: str, budget: str) -> None:
    """An encoder-decoder with dropout, whose memory every layer of the decoder reads, and a U-Net
    with BatchNorm: where skips are long."""
    original, args, kwargs = MODELS[name](torch.float32)
    eager = train_steps(original, args, kwargs)
    module, args, kwargs = MODELS[name](torch.float32)
    plan = remat_compile.plan(
        module,
        args,
        kwargs,
        budget=budget,
        costs="measured",
        planner=PLANNER,
        time_limit_s=10.0,
    )
    assert plan.proven is not None
    assert plan.budget is not None
    assert plan.planner == PLANNER
    assert max(plan.trace.executions.values()) > 1, "nothing runs again"
    assert plan.proven.device_bytes <= plan.budget.bytes
    compiled = plan.bind()
    assert isinstance(compiled, PlannedModule)
    assert_bit_equal(train_steps(compiled, args, kwargs), eager)
    for p in compiled.parameters():
        p.grad = None
    use = measure_step(compiled, args, kwargs)
    for measured, predicted in (
        (use.forward_measured_bytes, use.forward_predicted_bytes),
        (use.backward_measured_bytes, use.backward_predicted_bytes),
    ):
        assert measured <= plan.proven.device_bytes
        assert abs(measured - predicted) <= TOLERANCE * predicted
