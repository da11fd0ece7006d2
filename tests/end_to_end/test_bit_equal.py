"""Every model at every budget trains exactly as eager does: each bit, three steps.

One test is one capture: its budgets are planned, proven, built and trained in turn.
"""

from __future__ import annotations

import pytest
import torch

from helpers.execution.captures import BUDGETS, capture
from helpers.models import BASE, LOSS_INSIDE, MODELS, VARIANTS

DTYPES = {"f32": torch.float32, "f64": torch.float64}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BASE)
def test_bit_equal(name: str, dtype: str) -> None:
    capture(lambda: MODELS[name](DTYPES[dtype])).check(BUDGETS)


@pytest.mark.parametrize("name", [*LOSS_INSIDE, *VARIANTS])
def test_relatives(name: str) -> None:
    capture(lambda: MODELS[name](torch.float32)).check(("range:0.5", "least"))
