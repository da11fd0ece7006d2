"""Random proven plans with every kind of step run bit-equal with eager, within their bound."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from helpers.execution.random_runs import (
    COPIED,
    Outcome,
    captured,
    execute,
    executed_in_jax,
    plans_of,
)
from helpers.programs.random_plans import COPIES, KINDS
from helpers.verifier.mutants.fused import all_runs_fused
from remat_compile import Plan

SEEDS = range(4)
"""More by `run_random_plans.py --plans N`."""

MODELS = ("conv-bn-dropout-tied", "resnet")


@pytest.fixture(scope="module")
def bases() -> dict[str, Plan]:
    return {name: captured(name) for name in MODELS}


@pytest.fixture(scope="module")
def outcomes(bases: dict[str, Plan]) -> list[Outcome]:
    return [
        execute(name, seed, plan)
        for name in MODELS
        for seed, plan in plans_of(bases[name], SEEDS, copy=COPIED)
    ]


def test_each_is_bit_equal_and_within_its_bound(outcomes: list[Outcome]) -> None:
    assert [f"{o.model} {o.seed}: {o.failure}" for o in outcomes if o.failure] == []
    assert all(o.tensors >= 10 for o in outcomes)


def test_with_fused_cnodes_by_their_calls_too(bases: dict[str, Plan]) -> None:
    """As kernels they differ by rounding; as calls they are the same bits, and within the bound."""
    regions = 0
    for name in MODELS:
        for seed, plan in plans_of(bases[name], SEEDS[:2], copy=COPIED):
            program, schedule = all_runs_fused(plan.program, plan.schedule)
            regions += sum(c.is_fused for c in program.graph.cnodes)
            fused = replace(plan, program=program.with_schedule(schedule), schedule=schedule)
            done = execute(name, seed, fused, by_calls=True)
            assert not done.failure, f"{name} {seed}: {done.failure}"
    assert regions > 10


def test_they_have_every_kind_of_step(outcomes: list[Outcome]) -> None:
    counts: Counter[str] = sum((o.kinds for o in outcomes), Counter())
    assert {kind for kind in KINDS if not counts[kind]} == set()


# -- A few random proven plans with copies run in JAX as in PyTorch, in float64 -------------------

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
