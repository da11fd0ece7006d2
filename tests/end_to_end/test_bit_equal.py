"""Every model at every budget trains exactly as eager does: each bit, three steps.

One test is one capture: its budgets are planned, proven, built and trained in turn.
"""

from __future__ import annotations

import pytest
import torch

from helpers.execution.captures import BUDGETS, TIGHT, Captured, capture
from helpers.models import BASE, FACTORIES, LOSS_INSIDE, MODELS, VARIANTS
from helpers.slow import default_only
from helpers.training import assert_bit_equal
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
    *((f"small-{name}", "f32", TIGHT) for name in ("gpt", "resnet", "two")),
]
"""In every run: three models in float32 where much runs again, one under the other budgets."""


@pytest.mark.parametrize(("name", "dtype", "budgets"), default_only(CASES, DEFAULT))
def test_bit_equal(name: str, dtype: str, budgets: tuple[str, ...]) -> None:
    planner = "auto" if dtype == "f32" else "dtr"
    capture(lambda: FACTORIES[name](DTYPES[dtype]), budgets, planner).check()


@pytest.mark.parametrize(
    "name",
    default_only(
        [*LOSS_INSIDE, *VARIANTS, "small-gpt-p0"], ["mlp-loss", "small-gpt-p0", "two-inputgrad"]
    ),
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
