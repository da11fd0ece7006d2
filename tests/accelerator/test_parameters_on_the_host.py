"""Models whose parameters are on the host all along, trained on the queued device."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import remat_compile
from helpers.accelerator import Accelerator
from helpers.accelerator.offloaded import LATE, copies_of, engine_of
from remat_compile import FBError
from remat_compile.backends.torch import TrainingStep, measure_step
from remat_compile.verifier import ProvenPlan, verify

pytestmark = pytest.mark.slow

INFINITY: dict[str, Any] = {"planner": "zero-infinity", "link": "50GB/s", "budget": "120KiB"}


class Net(nn.Module):
    """Eight layers of which one fits on the device at a time; one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in (*self.layers, self.layers[0]):
            x = torch.tanh(layer(x))
        loss: Tensor = (self.head(x) - y).square().mean()
        return loss


def made(device: torch.device) -> tuple[Net, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = Net()
    return model, (torch.randn(16, 64).to(device), torch.randn(16, 1).to(device))


def adamw(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def compiled(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[AdamW, TrainingStep]:
    optimizer = adamw(model)
    step = remat_compile.compile(model, batch, optimizer=optimizer, **INFINITY)
    assert isinstance(step, TrainingStep)
    return optimizer, step


def test_bits_and_bytes_of_parameters_that_never_fit(queued: Accelerator) -> None:
    """In every order of the streams, with fewer bytes on the device than the parameters take.
    Beside it, the model itself on the device, whose gradients go to a copy on the host."""
    model, batch = made(queued.device)
    other = copy.deepcopy(model)
    there = copy.deepcopy(model).to(queued.device)
    stepper = adamw(other)
    whole = sum(p.nbytes for p in model.parameters())
    held = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    _, step = compiled(model, batch)
    assert torch.accelerator.max_memory_allocated() - held < whole  # the capture and its check
    plan = step.module.planned_step
    proven = verify(plan.program, plan.schedule)
    assert isinstance(proven, ProvenPlan)
    use = measure_step(step.module, batch)
    assert use.measured_bytes == use.predicted_bytes == proven.proven.device_bytes < whole
    assert 3 * whole < use.host_measured_bytes <= proven.proven.host_bytes
    model.load_state_dict(other.state_dict())
    optimizer, step = compiled(model, batch)
    engine = engine_of(copies_of(step.module))
    bound = proven.proven.device_bytes - sum(t.nbytes for t in batch)
    for order in LATE:
        gc.collect()
        held = torch.accelerator.memory_allocated()
        with order.of(engine), queued.limits(device_bytes=held + bound):
            loss = step(*batch)
        there.load_state_dict(other.state_dict())
        expected = there(*batch)
        gradients = torch.autograd.grad(expected, [*there.parameters()])
        for p, gradient in zip(other.parameters(), gradients, strict=True):
            p.grad = gradient.cpu()
        stepper.step()
        assert torch.equal(loss, expected)
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        assert all(p.device.type == "cpu" and p.grad is None for p in model.parameters())
    there.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert torch.equal(step.module(*batch), there(*batch))
    mine, theirs = (o.state_dict()["state"] for o in (optimizer, stepper))
    assert all(torch.equal(mine[p][key], theirs[p][key]) for p in theirs for key in theirs[p])


def test_what_does_not_lie_where_the_plan_has_it(queued: Accelerator) -> None:
    model, batch = made(queued.device)
    cases: dict[str, Any] = {
        "FB0555": lambda: remat_compile.compile(
            model, batch, optimizer=adamw(model), planner="paged-states", link="50GB/s"
        ),
        "FB0549": lambda: compiled(made(queued.device)[0].to(queued.device), batch),
    }
    for code, run in cases.items():
        with pytest.raises(FBError, match=code) as refused:
            run()
        assert [d.code for d in refused.value.diagnostics] == [code]
    model.register_buffer("scale", torch.ones(1))
    with pytest.raises(FBError, match="scale does not lie there"):
        compiled(model, batch)
