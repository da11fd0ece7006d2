"""Every model at every budget trains exactly as eager does: each bit, three steps.

One test is one capture: its budgets are planned, proven, built and trained in turn.
"""

from __future__ import annotations

import pytest
import torch

import remat_compile
from helpers.execution.captures import BUDGETS, TIGHT, Captured, capture
from helpers.models import BASE, FACTORIES, LOSS_INSIDE, MODELS, VARIANTS
from helpers.slow import default_only
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, measure_step
from remat_compile.planners.bounds.time_bounds import keeps_capture_order
from remat_compile.planners.registry import parse_planner

DTYPES = {"f32": torch.float32, "f64": torch.float64}
BLOCKS = ("gpt", "llama", "resnet", "two", "vit")
"""Models of equal blocks: in every run with one of them."""
CASES = [
    *((name, dtype, BUDGETS) for name in BASE for dtype in DTYPES),
    *((name, "f32", TIGHT) for name in BASE),
    *((f"small-{name}", "f32", TIGHT) for name in BLOCKS),
]
DEFAULT = [
    *(("mlp", dtype, BUDGETS) for dtype in DTYPES),
    *((f"small-{name}", "f32", TIGHT) for name in ("gpt", "resnet")),
]
"""In every run: two models in float32 where much runs again, one under the other budgets."""


@pytest.mark.parametrize(("name", "dtype", "budgets"), default_only(CASES, DEFAULT))
def test_bit_equal(name: str, dtype: str, budgets: tuple[str, ...]) -> None:
    planner = "auto" if dtype == "f32" else "dtr"
    capture(lambda: FACTORIES[name](DTYPES[dtype]), budgets, planner).check()


@pytest.mark.parametrize(
    "name",
    default_only([*LOSS_INSIDE, *VARIANTS, "small-gpt-p0"], ["mlp-loss", "two-inputgrad"]),
)
def test_relatives(name: str) -> None:
    capture(lambda: FACTORIES[name](torch.float32), TIGHT).check()


@pytest.mark.parametrize(
    "planner", ["rotor", "rockmate", "rk-checkmate", "polish", "reorder", "twremat"]
)
def test_plans_of_planners(mlp: Captured, planner: str) -> None:
    plan = mlp.plan(mlp.budget("range:0.6"), parse_planner(planner))
    assert max(plan.trace.executions.values()) > 1, "nothing runs again"
    assert_bit_equal(mlp.train(plan.bind()), mlp.eager)


def test_orders_other_than_that_of_capture() -> None:
    """First executions stand elsewhere, sums of gradients in place among them."""
    captured = capture(lambda: MODELS["two"](torch.float32))
    plan = captured.plan(captured.budget("range:0.5"), parse_planner("twremat"))
    assert not keeps_capture_order(plan.program, plan.schedule)
    assert_bit_equal(captured.train(plan.bind()), captured.eager)


@pytest.fixture(scope="module")
def mlp() -> Captured:
    return capture(lambda: MODELS["mlp"](torch.float32))


# -- Plans of `hiremate` as they run --------------------------------------------------------------

PLANNER = "hiremate{children=8, leaf=12, options=3, peaks=2, saves=2}"
TOLERANCE = 0.01
SKIPS = [("encdec", "range:0.3"), ("unet", "range:0.3")]


@pytest.mark.parametrize(("name", "budget"), default_only(SKIPS, [("unet", "range:0.3")]))
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
