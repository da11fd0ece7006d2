"""Plans that copy to the host, on an accelerator that gives nothing away (helpers/accelerator).

What runs is what runs on a real one: generated code, `AcceleratorEngine`, `torch.accelerator`.
"""

from __future__ import annotations

import ast
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

import remat_compile
from helpers.accelerator import NAME, Accelerator
from helpers.accelerator.offloaded import (
    AT_ONCE,
    LATE,
    ORDERS,
    Deaf,
    Model,
    Order,
    built,
    captured,
    copies_of,
    engine_of,
    plans_of,
    sample,
)
from helpers.emitted.torch_copy_faults import COPY_FAULTS
from helpers.execution.copied_steps import CopiedStep, step_of
from helpers.execution.tape import Tape
from helpers.models import BASE
from helpers.planners.matrix import linked
from helpers.programs.offloading import offload_everything
from helpers.programs.random_plans import random_plan
from helpers.programs.waits import needed_waits
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, bytes_at_entries, emit, measure_step
from remat_compile.backends.torch.runtime import AcceleratorEngine
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.plans.compare.step import compare_step
from remat_compile.verifier import ProvenPlan, verify

pytestmark = pytest.mark.slow

PLANNERS = ("offload-greedy", "vdnn", "rk-pofo")
SHARES = (0.75, 0.6, 0.9)
"""Budgets to try, of the activations' range, until the planner has a plan that copies."""


def schedule_of(planner: str, model: Model) -> Schedule:
    """A plan that copies; by hand, the one that copies every activation."""
    program = linked(model.program)
    if planner == "by hand":
        return offload_everything(program)
    for schedule in plans_of(planner, model, SHARES):
        if schedule.has_copies:
            return schedule
    pytest.skip(f"{planner} moves nothing")


@contextmanager
def at_limit(queued: Accelerator, module: PlannedModule, less: int = 0) -> Any:
    """In the forward and in the backward no more bytes are to be had than were proven for each."""
    step = module.planned_step
    trace = simulate(step.program, step.schedule)
    use = {
        "forward": max(trace.during[: trace.loss_step]),
        "backward": max(trace.during[trace.loss_step + 1 :]),
    }
    entries = dict(zip(use, bytes_at_entries(step.program, step.schedule), strict=True))

    @contextmanager
    def mark(region: str) -> Any:
        more = use[region] - entries[region] - less
        with queued.limits(device_bytes=torch.accelerator.memory_allocated() + more):
            yield

    step.flight.mark = mark
    try:
        yield
    finally:
        step.flight.mark = None


@pytest.mark.parametrize("model", BASE)
@pytest.mark.parametrize("planner", ["by hand", *PLANNERS])
def test_plans_are_bit_equal_in_every_order_within_their_bytes(
    queued: Accelerator, planner: str, model: str
) -> None:
    of = captured(model)
    schedule = schedule_of(planner, of)
    verdict = verify(linked(of.program), schedule)
    assert isinstance(verdict, ProvenPlan), verdict
    module = built(of, schedule)
    copies = copies_of(module)
    gc.collect()  # arenas of the test before
    pinned = queued.pinned_bytes
    for order in ORDERS:
        module.load_state_dict(of.state)
        with order.of(engine_of(copies)), at_limit(queued, module):
            trained = train_steps(module, of.args, of.kwargs)
        assert_bit_equal(trained, of.eager)
    use = measure_step(module, of.args, of.kwargs)
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.backward_measured_bytes == use.backward_predicted_bytes
    proven = verdict.proven
    assert max(use.forward_measured_bytes, use.backward_measured_bytes) <= proven.device_bytes
    pages = -(-proven.host_bytes // 4096) * 4096
    assert queued.pinned_bytes - pinned == pages
    assert 0 < use.host_measured_bytes <= proven.host_bytes
    with at_limit(queued, module, less=512), pytest.raises(torch.OutOfMemoryError):
        train_steps(module, of.args, of.kwargs)


# -- what must not go unseen ------------------------------------------------------------------


Make = Callable[[torch.device], AcceleratorEngine]


def caught(step: CopiedStep, make: Make = AcceleratorEngine, source: str = "") -> Iterator[Order]:
    """The orders in which a step does not run, gives other bits, or leaves something behind."""
    for order in (AT_ONCE, *LATE):
        engine = make(torch.device(NAME, 0))
        with order.of(engine):
            try:
                values, copies = step.run(engine, source or None)
                right = step.is_right(values) and not copies.flights and not copies.host_bytes
            except Exception:  # poison may be an index that is none, a name may be unbound
                right = False
        values = {}
        if not right:
            yield order


class Unready(AcceleratorEngine):
    """A copy may begin before what the compute stream was given until then."""

    def _event_on(self, stream: Any) -> Any:
        is_compute = stream == self._of.current(self.device)
        return torch.Event(self.device) if is_compute else super()._event_on(stream)  # of nothing


class Early(AcceleratorEngine):
    """The event of a copy stands before it."""

    def issue(self, direction: Any, *given: Any) -> Any:
        event = self._event_on(self._streams[direction])
        return replace(super().issue(direction, *given), ended=event)


class Beside(AcceleratorEngine):
    """The event of a copy is recorded on the stream of the computations."""

    def issue(self, *given: Any) -> Any:
        flight = super().issue(*given)
        return replace(flight, ended=self._event_on(self._of.current(self.device)))


class OneEvent(AcceleratorEngine):
    """Copies back have an event of the direction to the host."""

    def issue(self, *given: Any) -> Any:
        flight = super().issue(*given)
        return replace(flight, ended=self._event_on(self._streams["d2h"]))


def step_by_hand(model: str) -> CopiedStep:
    of = captured(model)
    return step_of(of.program, offload_everything(of.program), of.values)


@pytest.mark.parametrize("model", ["two", "resnet"])
def test_the_engine_is_right_in_every_order(queued: Accelerator, model: str) -> None:
    assert list(caught(step_by_hand(model))) == []


@pytest.mark.parametrize("kind", [Unready, Early, Beside, OneEvent])
def test_an_engine_that_misses_an_event_is_caught(queued: Accelerator, kind: Make) -> None:
    orders = list(caught(step_by_hand("two"), kind))
    assert orders
    assert AT_ONCE not in orders  # as on most days of a real one


def test_each_wait_that_is_removed_is_caught(queued: Accelerator) -> None:
    step = step_by_hand("two")
    waits = needed_waits(step.schedule)
    assert len(waits) > 10
    missed = [n for n in waits if not any(caught(step, partial(Deaf, deaf_to=n)))]
    assert missed == []


@pytest.mark.parametrize(
    "name",
    ["wait_left_out", "read_before_its_wait", "hostfree_before_its_wait", "hostfree_left_out"],
)
def test_faults_of_the_code_are_caught(queued: Accelerator, name: str) -> None:
    """A source that is freed before its wait is none here: the engine refers to it until then."""
    step = step_by_hand("two")
    tree = ast.parse(step.source)
    assert COPY_FAULTS[name](tree)
    assert any(caught(step, source=ast.unparse(ast.fix_missing_locations(tree))))


@pytest.mark.parametrize("model", ["mlp", "llama", "resnet", "two"])
def test_a_step_with_copies_from_a_record(queued: Accelerator, model: str) -> None:
    """Copies of the forward are over when its record ends; those of the backward come from the
    same host memory. A call that is given another arena runs without the record."""
    of = captured(model)
    recorder = Tape(queued.device)
    module = built(of, offload_everything(linked(of.program)), recorder)
    graphs = module.planned_step.graphs
    assert graphs is not None
    assert_bit_equal(train_steps(module, of.args, of.kwargs), of.eager)
    assert (graphs.replayed, recorder.records, copies_of(module).arenas) == (2, 2, 1)
    waiting = module(*of.args, **of.kwargs)
    module.load_state_dict(of.state)
    assert_bit_equal(train_steps(module, of.args, of.kwargs), of.eager)
    assert graphs.replayed == 3
    assert copies_of(module).arenas == 2
    del waiting


# -- calls that end otherwise -----------------------------------------------------------------


class Unheld(AcceleratorEngine):
    """A copy does not refer to its tensor on the device."""

    def issue(self, *given: Any) -> Any:
        return replace(super().issue(*given), tensor=None)


def grads(module: torch.nn.Module, of: Model, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    outputs = module(*of.args, **of.kwargs)
    loss = sum(o.square().sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,)))
    assert isinstance(loss, torch.Tensor)
    return list(torch.autograd.grad(loss, list(module.parameters())))


def _mixed(module: PlannedModule, of: Model) -> None:
    """A step, a forward without a backward, one without gradients, two before one backward."""
    grads(module, of)
    module(*of.args, **of.kwargs)
    with torch.no_grad():
        module(*of.args, **of.kwargs)
    one, two = module(*of.args, **of.kwargs), module(*of.args, **of.kwargs)
    sum(o.sum() for o in (*one, *two)).backward()
    for parameter in module.parameters():
        parameter.grad = None


@pytest.mark.filterwarnings("ignore:.*second forward")
def test_nothing_leaks_on_device_or_host(queued: Accelerator) -> None:
    of = captured("two")
    module = built(of, offload_everything(of.program))
    copies = copies_of(module)
    _mixed(module, of)
    gc.collect()
    held = torch.accelerator.memory_allocated(), queued.pinned_bytes
    for order in (AT_ONCE, *LATE):
        with order.of(engine_of(copies)):
            for _ in range(3):
                _mixed(module, of)
        gc.collect()
        assert (torch.accelerator.memory_allocated(), queued.pinned_bytes) == held, order
        assert copies.arenas == 1


def device_bytes() -> int:
    """Allocated, once the threads of autograd have let go of what they raised."""
    gc.collect()
    time.sleep(0.02)
    return torch.accelerator.memory_allocated()


def test_a_step_behind_one_that_failed(queued: Accelerator) -> None:
    """In its middle, for want of memory."""
    of = captured("two")
    module = built(of, offload_everything(of.program))
    engine = engine_of(copies_of(module))
    wanted = grads(module, of)
    held = device_bytes()
    for order, less in zip(LATE, (512, 4096, 8192, 16384), strict=True):
        with order.of(engine):
            with at_limit(queued, module, less), pytest.raises(torch.OutOfMemoryError):
                grads(module, of)
            # Copies that nobody waited for are settled when the next call begins.
            assert all(map(torch.equal, grads(module, of), wanted))
        assert device_bytes() == held


@pytest.mark.parametrize("kind", [AcceleratorEngine, Unheld])
def test_a_copy_that_nobody_waits_for_refers_to_its_tensor(queued: Accelerator, kind: Make) -> None:
    """Else its bytes are another's when it comes."""
    engine = kind(queued.device)
    host = engine.host_memory(4096)
    host[0].fill_(1)
    with Order(("h2d",)).of(engine):
        tensor = torch.empty(1024, device=queued.device)
        flight = engine.issue("h2d", "x", tensor, host)
        del tensor
        other = torch.zeros(1024, device=queued.device)
        torch.accelerator.synchronize()
    assert other.any() == (kind is Unheld)
    del flight


def test_pinned_memory_that_is_not_to_be_had(queued: Accelerator) -> None:
    of = captured("two")
    module = built(of, offload_everything(of.program))
    size = simulate(of.program, module.planned_step.schedule).host_peak_bytes
    with (
        queued.limits(pinned_bytes=queued.pinned_bytes + size // 2),
        pytest.raises(FBError, match=rf"FB0951.*{size} bytes of host memory.*cannot be pinned"),
    ):
        grads(module, of)
    grads(module, of)


def test_what_a_user_writes(queued: Accelerator) -> None:
    of, (module, args, _) = captured("gpt-loss"), sample("gpt-loss")
    plan = remat_compile.plan(
        module, args, activation_budget="75%", link="50GB/s", planner="offload-greedy"
    )
    assert plan.schedule.has_copies
    compiled = plan.bind()
    step = compare_step(plan, compiled, of.exported, repeats=1)
    assert step.bit_equal
    assert step.measured_bytes == plan.peak_bytes
    for order in LATE:
        compiled.load_state_dict(of.state)
        with order.of(engine_of(copies_of(compiled))):
            trained = train_steps(compiled, args)
        assert_bit_equal(trained, of.eager)


def test_dropout_again_from_the_generator_of_the_device(queued: Accelerator) -> None:
    of = captured("gpt")
    plans = (random_plan(Random(seed), of.program) for seed in range(50))
    plan = next(p for p in plans if "replay(rng" in emit(of.program, p))
    module = built(of, plan)
    queued.starve({0})
    state = torch.get_rng_state()
    trained = train_steps(module, of.args, of.kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    assert_bit_equal(trained, of.eager)
