"""Every model at every budget trains exactly as eager does: each bit, three steps."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from capture import BUDGETS, Captured, capture

from harness import assert_bit_equal
from models import BASE, LOSS_INSIDE, MODELS, VARIANTS
from remat_compile.planners.registry import parse_planner

DTYPES = {"f32": torch.float32, "f64": torch.float64}


@lru_cache(maxsize=1)
def captured(name: str, dtype: str) -> Captured:
    return capture(lambda: MODELS[name](DTYPES[dtype]))


CASES = [
    *((name, dtype, budget) for name in BASE for dtype in DTYPES for budget in BUDGETS),
    *((name, "f32", budget) for name in LOSS_INSIDE for budget in ("range:0.7", "least")),
    *((name, "f64", "range:0.5") for name in LOSS_INSIDE),
    *((name, "f32", budget) for name in VARIANTS for budget in ("range:0.5", "least")),
]
"""All budgets for the eight models; for their relatives, those that differ most."""


@pytest.mark.parametrize(("name", "dtype", "budget"), CASES)
def test_bit_equal(name: str, dtype: str, budget: str) -> None:
    at = captured(name, dtype)
    bound = at.budget(budget)
    plan = at.plan(bound, parse_planner("dtr" if budget == "least" else "auto"))
    assert plan.peak_bytes <= bound.bytes
    if budget in ("range:0.5", "least"):
        assert max(plan.trace.executions.values()) > 1, "nothing is recomputed"
    assert_bit_equal(at.train(plan), at.eager)
