"""Plans of every planner that copies run on the CPU: bit-equal, within their bytes to the byte."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from random import Random
from threading import Lock
from typing import Any

import pytest
import torch

from helpers.execution.copy_engines import LateEngine
from helpers.models import BASE, MODELS
from helpers.planners.matrix import COPYING, linked
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import build, measure_step
from remat_compile.backends.torch.runtime.cpu import ThreadEngine
from remat_compile.capture.torch import (
    Exported,
    export,
    lower,
)
from remat_compile.costs import measured
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Direction
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import NotApplicable, parse_planner
from remat_compile.plans.budget import Baseline
from remat_compile.verifier import ProvenPlan, verify

SHARES = (0.75, 0.6, 0.9)
"""Budgets to try, of the activations' range, until the planner has a plan that copies."""
QUICK = ("offload-greedy", "offload-dp", "vdnn", "autocapper", "rk-pofo")
"""Planners that every run tries, with the MLP and three patterns."""
PATTERNS = 20
"""Of delays of the copies, for each plan."""
CELLS = [(planner, model) for planner in sorted(COPYING) for model in BASE]


def delayed(seed: int) -> ThreadEngine:
    """Every copy begins as late as this pattern says: at once, or up to two milliseconds late."""
    rng, lock = Random(seed), Lock()

    def delay(direction: Direction, name: str) -> float:
        with lock:  # each direction has a thread
            return rng.choice((0.0, 0.0, 1e-4, 5e-4, 2e-3)) * rng.random()

    return ThreadEngine(delay)


def exported_of(model: str) -> Exported:
    module, args, kwargs = MODELS[model](torch.float32)
    return export(module, args, kwargs)


@cache
def costed(model: str) -> Program:
    with lower(exported_of(model)) as lowered:
        program = measured(lowered.program, lowered.values(), time_limit_s=0.2)
    return linked(program)


@pytest.mark.parametrize(
    ("planner", "model", "patterns"),
    [
        *((planner, "mlp", 3) for planner in QUICK),
        *(pytest.param(*cell, PATTERNS, marks=pytest.mark.slow) for cell in CELLS),
    ],
)
def test_plans_run_bit_equal_and_measure_as_proven(planner: str, model: str, patterns: int) -> None:
    program = costed(model)
    base = Baseline.of(program)
    made: Any = None
    for share in SHARES:
        low, high = base.activation_floor_bytes, base.activation_peak_bytes
        budget = Budget(int(low + share * (high - low)), "activation")
        made = parse_planner(planner).plan(program, budget, time_limit_s=20.0)
        if isinstance(made, NotApplicable):
            pytest.skip(made.why.message)
        if getattr(made, "schedule", None) is not None and made.schedule.has_copies:
            break
    else:
        pytest.skip(f"{planner} moves nothing of {model}")
    verdict = verify(program, made.schedule, (budget,))
    assert isinstance(verdict, ProvenPlan), verdict
    with lower(exported_of(model)) as lowered:
        drop_in = build(lowered.with_program(program), made.schedule)
    copies = drop_in.planned_step.copies
    assert copies is not None
    module, args, kwargs = MODELS[model](torch.float32)
    usual = copies.engine
    eager, state = train_steps(module, args, kwargs), deepcopy(drop_in.state_dict())
    copies.engine = LateEngine()  # each copy runs at its wait; what is read too early is poisoned
    assert_bit_equal(train_steps(drop_in, args, kwargs), eager)
    for seed in range(patterns):
        copies.engine = delayed(seed)
        drop_in.load_state_dict(state)
        assert_bit_equal(train_steps(drop_in, args, kwargs), eager)
    copies.engine = usual
    use = measure_step(drop_in, args, kwargs)
    trace = simulate(program, made.schedule)
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.backward_measured_bytes == use.backward_predicted_bytes
    assert max(use.forward_measured_bytes, use.backward_measured_bytes) <= trace.peak_bytes
    assert use.host_measured_bytes == trace.host_peak_bytes == verdict.proven.host_bytes > 0
