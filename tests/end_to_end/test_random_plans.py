"""Random proven plans with every kind of step run bit-equal with eager, within their bound."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.execution.random_runs import COPIED, Outcome, captured, execute, plans_of
from helpers.programs.random_plans import KINDS

SEEDS = range(4)
"""More by `run_random_plans.py --plans N`."""

MODELS = ("conv-bn-dropout-tied", "resnet")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [
        execute(name, seed, plan)
        for name in MODELS
        for seed, plan in plans_of(captured(name), SEEDS, copy=COPIED)
    ]


def test_each_is_bit_equal_and_within_its_bound(outcomes: list[Outcome]) -> None:
    assert [f"{o.model} {o.seed}: {o.failure}" for o in outcomes if o.failure] == []
    assert all(o.tensors >= 10 for o in outcomes)


def test_they_have_every_kind_of_step(outcomes: list[Outcome]) -> None:
    found: Counter[str] = sum((o.kinds for o in outcomes), Counter())
    assert {kind for kind in KINDS if not found[kind]} == set()
