"""Planned steps on a GPU: bits of eager, bytes of the proof, copies however late they come."""

from __future__ import annotations

import gc
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

import remat_compile
from helpers.accelerator.offloaded import (
    Deaf,
    Model,
    built,
    captured,
    copies_of,
    engine_of,
    plans_of,
    sample,
)
from helpers.execution.copied_steps import CopiedStep, step_of
from helpers.gpu import AT_ONCE, LATE, PATTERNS, Delay
from helpers.models import BASE
from helpers.planners.matrix import linked
from helpers.programs.offloading import offload_everything
from helpers.programs.random_plans import random_plan
from helpers.programs.waits import needed_waits
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, emit, measure_step
from remat_compile.backends.torch.runtime import AcceleratorEngine
from remat_compile.ir.expr import evaluate
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.plans.compare.step import compare_step
from remat_compile.verifier import ProvenPlan, verify

pytestmark = pytest.mark.slow

PLANNERS = ("offload-greedy", "offload-dp", "vdnn", "tflms", "autoswap", "pofo", "rk-pofo")
SHARES = (0.75, 0.6, 0.9)
"""Budgets to try, of the activations' range, until the planner has a plan that copies."""


def predicted_bytes_on_host(program: Program) -> int:
    """At most what is predicted for the device and lies on the host."""
    unit = program.target.granularity_bytes
    return sum(unit for a in program.graph.anodes if evaluate(a.size, program.sample) <= 16)


def assert_as_proven(model: Model, schedule: Schedule, module: PlannedModule) -> None:
    """The bytes that the allocator counts are at most those predicted and proven. They are fewer by
    what a GPU's kernels keep on the host: states of generators, seeds of attention."""
    verdict = verify(linked(model.program), schedule)
    assert isinstance(verdict, ProvenPlan), verdict
    use = measure_step(module, model.args, model.kwargs)
    over = predicted_bytes_on_host(model.program)
    for measured, predicted in (
        (use.forward_measured_bytes, use.forward_predicted_bytes),
        (use.backward_measured_bytes, use.backward_predicted_bytes),
    ):
        assert predicted - over <= measured <= predicted
    proven = verdict.proven
    assert max(use.forward_measured_bytes, use.backward_measured_bytes) <= proven.device_bytes
    assert use.host_measured_bytes <= proven.host_bytes


@pytest.mark.parametrize("model", BASE)
@pytest.mark.parametrize("planner", ["store-all", "dtr", "rockmate", "random"])
def test_recomputed_steps(gpu: torch.device, planner: str, model: str) -> None:
    of = captured(model, gpu)
    if planner == "random":
        plans = [random_plan(Random(seed), of.program) for seed in range(3)]
    else:
        plans = [*plans_of(planner, of, (1.0,) if planner == "store-all" else (0.5,))]
    for schedule in plans:
        module = built(of, schedule)
        assert_bit_equal(train_steps(module, of.args, of.kwargs), of.eager)
        assert_as_proven(of, schedule, module)


@pytest.mark.parametrize("model", BASE)
@pytest.mark.parametrize("planner", ["by hand", *PLANNERS])
def test_copies_in_twenty_patterns(gpu: torch.device, planner: str, model: str) -> None:
    of = captured(model, gpu)
    if planner == "by hand":
        plans = [offload_everything(linked(of.program))]
    else:
        plans = [s for s in plans_of(planner, of, SHARES) if s.has_copies][:1]
    if not plans:
        pytest.skip(f"{planner} moves nothing")
    module = built(of, plans[0])
    for delay in PATTERNS:
        module.load_state_dict(of.state)
        with delay.of(engine_of(copies_of(module))):
            trained = train_steps(module, of.args, of.kwargs)
        assert_bit_equal(trained, of.eager)
    assert_as_proven(of, plans[0], module)


# -- what must not go unseen ------------------------------------------------------------------


def caught(step: CopiedStep, make: Any) -> list[Delay]:
    """The delays under which a step gives other bits, or does not run."""
    delays = []
    for delay in (AT_ONCE, *LATE):
        engine = make(torch.device("cuda", 0))
        with delay.of(engine):
            values, _ = step.run(engine)
            torch.cuda.synchronize()
            if not step.is_right(values):
                delays.append(delay)
    return delays


def test_waits_that_are_removed_show(gpu: torch.device) -> None:
    """Most of them: one just before a wait for a later copy of the same direction is not needed
    where copies keep their order and nothing is allocated between. The queued device of
    tests/accelerator catches all."""
    of = captured("two", gpu)
    step = step_of(of.program, offload_everything(of.program), of.values)
    assert caught(step, AcceleratorEngine) == []
    waits = needed_waits(step.schedule)
    assert len(waits) > 10
    missed = [n for n in waits if not caught(step, partial(Deaf, deaf_to=n))]
    assert len(missed) <= len(waits) // 8


# -- calls that end otherwise -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*second forward")
def test_nothing_leaks(gpu: torch.device) -> None:
    of = captured("two", gpu)
    module = built(of, offload_everything(of.program))
    copies = copies_of(module)

    def mixed() -> None:
        """A step, a forward without a backward, one without gradients, two before a backward."""
        for outputs in [module(*of.args, **of.kwargs)]:
            sum(o.square().sum() for o in outputs).backward()
        module(*of.args, **of.kwargs)
        with torch.no_grad():
            module(*of.args, **of.kwargs)
        one, two = module(*of.args, **of.kwargs), module(*of.args, **of.kwargs)
        sum(o.sum() for o in (*one, *two)).backward()
        module.zero_grad(set_to_none=True)

    for _ in range(5):
        mixed()
    gc.collect()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for _ in range(400):
        mixed()
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held
    assert copies.arenas <= 2


def test_dropout_again_from_the_generator_of_the_device(gpu: torch.device) -> None:
    of = captured("gpt", gpu)
    plans = (random_plan(Random(seed), of.program) for seed in range(50))
    plan = next(p for p in plans if "replay(rng" in emit(of.program, p))
    module = built(of, plan)
    assert_bit_equal(train_steps(module, of.args, of.kwargs), of.eager)


def test_what_a_user_writes(gpu: torch.device) -> None:
    of, (module, args, _) = captured("gpt-loss", gpu), sample("gpt-loss", gpu)
    plan = remat_compile.plan(module, args, activation_budget="75%", planner="offload-greedy")
    assert plan.program.target.has_link
    assert plan.schedule.has_copies
    compiled = plan.bind()
    step = compare_step(plan, compiled, of.exported, repeats=1)
    assert step.bit_equal
    over = predicted_bytes_on_host(plan.program)
    assert plan.peak_bytes - over <= step.measured_bytes <= plan.peak_bytes
