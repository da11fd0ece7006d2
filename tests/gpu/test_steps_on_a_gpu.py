"""Planned steps on a GPU: bits of eager, bytes of the proof, copies however late they come."""

from __future__ import annotations

import gc
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

import remat_compile
from helpers.accelerator.offloaded import Model, captured, sample
from helpers.execution.copied_steps import CopiedStep, step_of
from helpers.gpu import AT_ONCE, LATE, PATTERNS, Delay
from helpers.models import BASE
from helpers.planners.matrix import linked
from helpers.programs.offloading import offload_everything
from helpers.programs.random_plans import random_plan
from helpers.programs.waits import needed_waits
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, build, emit, measure_step
from remat_compile.backends.torch.runtime import AcceleratorEngine, PlanCopies
from remat_compile.driver.budget import Baseline
from remat_compile.driver.compare_torch import compare_step
from remat_compile.frontends.torch_export import lower
from remat_compile.ir.expr import evaluate
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Schedule
from remat_compile.planners import parse_planner
from remat_compile.verifier import ProvenPlan, verify

pytestmark = pytest.mark.slow

PLANNERS = ("offload-greedy", "offload-dp", "vdnn", "tflms", "autoswap", "pofo", "rk-pofo")
SHARES = (0.75, 0.6, 0.9)
"""Budgets to try, of the activations' range, until the planner has a plan that copies."""


def built(model: Model, schedule: Schedule) -> PlannedModule:
    with lower(model.exported) as lowered:
        made = build(lowered.with_program(model.program), schedule)
    made.load_state_dict(model.state)
    return made


def copies_of(module: torch.nn.Module) -> PlanCopies:
    assert isinstance(module, PlannedModule)
    copies = module.planned_step.copies
    assert copies is not None
    return copies


def engine_of(copies: PlanCopies) -> AcceleratorEngine:
    assert isinstance(copies.engine, AcceleratorEngine)
    return copies.engine


def plan_of(planner: str, model: Model, shares: tuple[float, ...]) -> list[Schedule]:
    """Plans of a planner under shares of the activations' range, as far as it finds some."""
    program = linked(model.program)
    base, found = Baseline.of(program), []
    low, high = base.activation_floor_bytes, base.activation_peak_bytes
    for share in shares:
        budget = Budget(int(low + share * (high - low)), "activation")
        made: Any = parse_planner(planner).plan(program, budget, time_limit_s=20.0)
        schedule: Schedule | None = getattr(made, "schedule", None)
        if schedule is not None:
            found.append(schedule)
    return found


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
        plans = plan_of(planner, of, (1.0,) if planner == "store-all" else (0.5,))
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
        plans = [s for s in plan_of(planner, of, SHARES) if s.has_copies][:1]
    if not plans:
        pytest.skip(f"{planner} moves nothing")
    module = built(of, plans[0])
    for delay in PATTERNS:
        module.load_state_dict(of.state)
        with delay.of(engine_of(copies_of(module))):
            found = train_steps(module, of.args, of.kwargs)
        assert_bit_equal(found, of.eager)
    assert_as_proven(of, plans[0], module)


# -- what must not go unseen ------------------------------------------------------------------


class Deaf(AcceleratorEngine):
    """One wait does nothing, as if the code did not have it."""

    def __init__(self, device: torch.device, deaf_to: int) -> None:
        super().__init__(device)
        self.deaf_to, self.waits = deaf_to, 0

    def wait(self, flight: Any) -> None:
        self.waits += 1
        if self.waits - 1 != self.deaf_to:
            super().wait(flight)


def caught(step: CopiedStep, make: Any) -> list[Delay]:
    """The delays under which a step gives other bits, or does not run."""
    found = []
    for delay in (AT_ONCE, *LATE):
        engine = make(torch.device("cuda", 0))
        with delay.of(engine):
            values, _ = step.run(engine)
            torch.cuda.synchronize()
            if not step.is_right(values):
                found.append(delay)
    return found


def test_each_wait_that_is_removed_is_caught(gpu: torch.device) -> None:
    of = captured("two", gpu)
    step = step_of(of.program, offload_everything(of.program), of.values)
    assert caught(step, AcceleratorEngine) == []
    waits = needed_waits(step.schedule)
    assert len(waits) > 10
    missed = [n for n in waits if not caught(step, partial(Deaf, deaf_to=n))]
    assert missed == []


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
    assert step.measured_bytes == plan.peak_bytes
