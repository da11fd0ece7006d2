"""The device of these tests is as unkind as it says, and computes as the CPU does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import remat_compile
from helpers.accelerator import Accelerator
from helpers.models import MODELS
from helpers.training import train_steps
from remat_compile.costs.measured_link import with_measured_link
from remat_compile.ir.program import Target
from remat_compile.plans.link.other_link import link_of_device

pytestmark = pytest.mark.slow


def pinned(size: int) -> torch.Tensor:
    return torch.empty(size, pin_memory=True)


def test_a_starved_stream_runs_when_it_is_waited_for(queued: Accelerator) -> None:
    x, host = torch.arange(4.0, device=queued.device), pinned(4)
    stream = torch.Stream(queued.device)
    queued.starve({stream.stream_id})
    with stream:
        host.copy_(x, non_blocking=True)
        event = stream.record_event()
    assert host.isnan().all()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert host.tolist() == [0, 1, 2, 3]


def test_a_kernel_reads_what_lies_there_when_it_runs(queued: Accelerator) -> None:
    """Freed and poisoned, as no event orders the two streams."""
    x, host = torch.ones(4, device=queued.device), pinned(4)
    stream = torch.Stream(queued.device)
    queued.starve({stream.stream_id})
    with stream:
        host.copy_(x, non_blocking=True)
    del x
    torch.accelerator.synchronize()
    assert host.isnan().all()


def test_memory_of_a_stream_serves_that_stream(queued: Accelerator) -> None:
    x = torch.ones(1000, device=queued.device)
    place = x.data_ptr()
    del x
    with torch.Stream(queued.device):
        other = torch.ones(1000, device=queued.device)
    again = torch.ones(1000, device=queued.device)
    assert other.data_ptr() != place == again.data_ptr()


def test_limits_are_exact(queued: Accelerator) -> None:
    now = torch.accelerator.memory_allocated()
    with queued.limits(device_bytes=now + 1024):
        x = torch.ones(129, device=queued.device)  # two blocks of 512
        with pytest.raises(torch.OutOfMemoryError, match="512 bytes asked for"):
            torch.ones(1, device=queued.device)
        del x
        torch.ones(256, device=queued.device)
    with queued.limits(pinned_bytes=queued.pinned_bytes + 4096):
        held = pinned(1024)
        with pytest.raises(RuntimeError, match="cannot be pinned"):
            pinned(1)
        del held
    torch.accelerator.reset_peak_memory_stats()
    torch.ones(256, device=queued.device)
    assert torch.accelerator.max_memory_allocated() == now + 1024


def test_random_numbers_are_drawn_in_the_order_of_issue(queued: Accelerator) -> None:
    """Also where the second operator runs, on another stream, before the first."""

    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(5)
        x = torch.ones(64, device=queued.device)
        torch.accelerator.synchronize()
        first = torch.nn.functional.dropout(x, 0.5)
        with torch.Stream(queued.device) as stream:
            second = torch.nn.functional.dropout(x, 0.5)
        stream.synchronize()
        return [second.cpu(), first.cpu(), torch.rand(3, device=queued.device).cpu()]

    wanted = drawn()
    state = torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(state, torch.get_rng_state())  # the CPU's generator is another
    queued.starve({0})
    assert all(map(torch.equal, drawn(), wanted))


@pytest.mark.parametrize("name", ["mlp", "resnet", "two"])
def test_three_steps_have_the_bits_of_the_cpu(queued: Accelerator, name: str) -> None:
    """Of models whose composite operators PyTorch does not take apart by the device."""
    module, args, kwargs = MODELS[name](torch.float32)
    wanted = train_steps(module, args, kwargs)
    module, args, kwargs = MODELS[name](torch.float32)
    queued.starve({0})
    trained = train_steps(module.to(queued.device), [a.to(queued.device) for a in args], kwargs)
    for mine, its in zip(trained.steps, wanted.steps, strict=True):
        for a, b in zip(mine.outputs, its.outputs, strict=True):
            assert torch.equal(a.cpu(), b)
    for parameter, tensor in trained.params.items():
        assert torch.equal(tensor.cpu(), wanted.params[parameter])


def test_no_operator_of_a_step_ends_the_queue(queued: Accelerator) -> None:
    """Else no stream would be late."""
    before = queued.synchronous_operators
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU()).to(queued.device)
    module(torch.ones(2, 2, 5, 5, device=queued.device)).square().mean().backward()
    assert queued.synchronous_operators == before


def test_the_link_is_measured(queued: Accelerator) -> None:
    with queued.limits(pinned_bytes=queued.pinned_bytes + 4096):
        assert with_measured_link(Target(), queued.device) == Target()  # there is no memory for it
    made = with_measured_link(Target(), queued.device)
    assert made.d2h_bytes_per_s
    assert made.h2d_bytes_per_s
    assert made.both_bytes_per_s
    assert made.both_bytes_per_s >= max(made.d2h_bytes_per_s, made.h2d_bytes_per_s)
    assert made.copy_latency_ns > 0
    assert made.copy_issue_ns > 0


def test_a_plan_for_another_link_is_told(queued: Accelerator) -> None:
    """One over which copies take no time, beside one that takes longer than the whole step."""
    module, args, _ = MODELS["two"](torch.float32)
    plan = remat_compile.plan(
        module, args, activation_budget="75%", link="1TB/s", planner="offload-greedy"
    )
    assert plan.schedule.has_copies
    warning = link_of_device(plan, queued.device)
    assert warning is not None
    assert warning.code == "FB0478"
