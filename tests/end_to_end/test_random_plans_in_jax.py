"""A few random proven plans with copies run in JAX as in PyTorch, in float64."""

from __future__ import annotations

import torch

from helpers.execution.random_runs import COPIED, captured, executed_in_jax, plans_of
from helpers.programs.random_plans import COPIES

MODEL = "conv-bn-dropout-tied"


def test_each_equals_pytorch_in_float64() -> None:
    base = captured(MODEL, torch.float64)
    execute = executed_in_jax(base)
    outcomes = [
        execute(MODEL, seed, plan) for seed, plan in plans_of(base, range(1, 4), copy=COPIED)
    ]
    assert [f"{o.seed}: {o.failure}" for o in outcomes if o.failure] == []
    assert all(o.tensors >= 10 for o in outcomes)
    assert not [kind for kind in COPIES if not any(o.kinds[kind] for o in outcomes)]
