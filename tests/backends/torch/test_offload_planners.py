"""Plans of every planner that copies run on the CPU: bit-equal, within their bytes to the byte."""

from __future__ import annotations

import ast
from copy import deepcopy
from functools import cache
from random import Random
from threading import Lock
from typing import Any

import pytest
import torch

from helpers.emitted.torch_copy_faults import COPY_FAULTS
from helpers.execution.copied_steps import CopiedStep, copied_step, offloading_step
from helpers.execution.copy_engines import LateEngine, traced
from helpers.models import BASE, MODELS
from helpers.planners.matrix import COPYING, linked
from helpers.programs.waits import needed_waits
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import build, measure_step
from remat_compile.backends.torch.runtime import AcceleratorEngine, CopyEngine, ThreadEngine
from remat_compile.capture.torch import Exported, export, lower
from remat_compile.costs import measured
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Direction
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import NotApplicable, parse_planner
from remat_compile.plans.budget import Baseline
from remat_compile.verifier import ProvenPlan, verify

SHARES = (0.75, 0.6, 0.9)
"""Budgets to try, of the activations' range, until the planner has a plan that copies."""
QUICK = ("offload-greedy", "offload-dp", "vdnn", "autocapper", "rk-pofo", "offmate")
"""Planners that every run tries, with the MLP and three patterns."""
PATTERNS = 20
"""Of delays of the copies, for each plan."""
WITH_HOMES = ("offmate", "zero-infinity")
"""Planners whose budgets are of all device bytes: parameters move."""
CELLS = [(planner, model) for planner in (*sorted(COPYING), *WITH_HOMES) for model in BASE]


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
        if planner in WITH_HOMES:
            budget = Budget(int(share * base.peak_bytes))
        else:
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


# -- Generated code relies on no timing of its copies ---------------------------------------------

BATCH_NORM, OTHERS = "conv-bn-dropout-tied", ("two-towers", "resnet")
PLANS = [(name, seed) for name in ("resnet", "conv-bn-dropout-tied") for seed in range(4)]


def caught(step: CopiedStep, engine: LateEngine, source: str | None = None) -> str:
    """What the late engine says of code; nothing where it is right."""
    try:
        values, copies = step.run(engine, source)
    except Exception as error:  # poison may be an index that is none, a name may be unbound
        return f"{type(error).__name__}: {error}"
    if not step.is_right(values):
        return "wrong data"
    left = engine.pending or copies.flights or copies.host_bytes
    return "left under way" if left else ""


@pytest.mark.parametrize(("name", "seed"), PLANS)
def test_random_plans_are_right_with_every_engine(name: str, seed: int) -> None:
    step = copied_step(name, seed)
    with traced() as (engine, races):
        values, _ = step.run(engine)
        assert step.is_right(values)
        del values
    assert races.reports == []
    late: list[CopyEngine] = [LateEngine(), ThreadEngine(lambda *_: 2e-4), ThreadEngine()]
    peak = simulate(step.program, step.schedule).host_peak_bytes
    for one in late:
        values, copies = step.run(one)
        assert step.is_right(values)
        assert copies.host_peak_bytes == peak
        assert copies.host_bytes == 0


def test_each_wait_that_is_removed_is_caught_late() -> None:
    for step in (copied_step("resnet", 1), copied_step("conv-bn-dropout-tied", 2)):
        engine = LateEngine()
        step.run(engine)
        assert engine.waits >= 40
        missed = [i for i in range(engine.waits) if not caught(step, LateEngine(i))]
        assert missed == []


def test_each_wait_that_is_removed_is_a_race() -> None:
    """In a plan whose every wait stands right before what needs it."""
    step = offloading_step("two-towers")
    waits = needed_waits(step.schedule)
    assert len(waits) > 10
    for wait in waits:
        assert caught(step, LateEngine(wait))
        with traced(wait) as (clocks, races):
            values, _ = step.run(clocks)
            del values
        assert races.reports, f"wait {wait}"


def test_clocks_miss_no_event_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the event before a copy, it may start before its source is written."""
    step = offloading_step("two-towers")
    with traced() as (engine, races):
        values, _ = step.run(engine)
        del values
    assert races.reports == []
    issue = AcceleratorEngine.issue

    def too_early(self: AcceleratorEngine, *given: Any) -> Any:
        streams: dict[str, Any] = dict(self._streams)
        for stream in streams.values():
            monkeypatch.setattr(stream, "wait_event", lambda _: None, raising=False)
        return issue(self, *given)

    monkeypatch.setattr(AcceleratorEngine, "issue", too_early)
    with traced() as (engine, races):
        values, _ = step.run(engine)
        del values
    assert races.reports


@pytest.mark.parametrize(
    "name",
    [
        "wait_left_out",
        "freed_before_its_wait",
        "read_before_its_wait",
        "hostfree_before_its_wait",
        "offload_left_out",
        "hostfree_left_out",
    ],
)
def test_faults_of_copies_do_not_run_unseen(name: str) -> None:
    """Should the read-back ever let such code through, it does not compute wrong in silence."""
    tried = 0
    for seed in range(12):
        # What a random plan computes a second time may be dropped, whatever it read.
        is_read = name == "read_before_its_wait"
        step = offloading_step(OTHERS[seed % 2]) if is_read else copied_step(BATCH_NORM, seed)
        tree = ast.parse(step.source)
        if COPY_FAULTS[name](tree):
            tried += 1
            source = ast.unparse(ast.fix_missing_locations(tree))
            assert caught(step, LateEngine(), source), f"seed {seed}"
    assert tried
