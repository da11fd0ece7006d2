"""Every model at every budget trains exactly as eager does: each bit, three steps."""

from __future__ import annotations

import pytest
import torch
from remat_compile.planners.dtr import Dtr

import remat_compile
from harness import assert_bit_equal, train_steps
from models import BASE, LOSS_INSIDE, MODELS, VARIANTS
from remat_compile import Plan
from remat_compile.planners.contract import Infeasible

BUDGETS = ("range:1.0", "range:0.7", "range:0.5", "least")
DTYPES = {"f32": torch.float32, "f64": torch.float64}


def least_budget(name: str, dtype: torch.dtype) -> int:
    """2 % above the fewest device bytes for which `dtr` finds a plan."""
    module, args, kwargs = MODELS[name](dtype)
    plan: Plan = remat_compile.plan(
        module, args, kwargs, planner="store-all", costs="roofline", device="cpu"
    )
    result = Dtr().plan(plan.program, remat_compile.Budget(1))
    assert isinstance(result, Infeasible)
    assert result.min_budget is not None
    return result.min_budget.bytes * 102 // 100


def check(name: str, dtype: torch.dtype, budget: str) -> None:
    module, args, kwargs = MODELS[name](dtype)
    compiled = remat_compile.compile(
        module,
        args,
        kwargs,
        budget=least_budget(name, dtype) if budget == "least" else budget,
        planner="dtr" if budget == "least" else "auto",
        costs="roofline",
        device="cpu",
    )
    eager, _, _ = MODELS[name](dtype)
    assert_bit_equal(train_steps(compiled, args, kwargs), train_steps(eager, args, kwargs))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*BASE, *LOSS_INSIDE, *VARIANTS])
def test_bit_equal(name: str, dtype: str, budget: str) -> None:
    check(name, DTYPES[dtype], budget)
