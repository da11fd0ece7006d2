"""A hundred steps with homes on the host: every bit of ordinary training, and nothing piles up."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import remat_compile
from helpers.networks.llama import Llama
from helpers.networks.transformers import GPT
from helpers.planners.homed_updates import HomedUpdates
from remat_compile.backends.torch import TrainingStep, measure_step
from remat_compile.verifier import ProvenPlan, verify

HOMES: dict[str, tuple[Any, str | None]] = {
    "all": ("zero-infinity", "60%"),
    "states": ("paged-states", "85%"),
    "chosen": ("offmate", "50%"),
    "mixed": (HomedUpdates(("device", "home", "host")), None),
}


class WithLoss(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x).flatten(0, 1), x.roll(-1, 1).flatten())


def ids(seed: int) -> Tensor:
    return torch.randint(0, 61, (4, 16), generator=torch.Generator().manual_seed(seed))


def live_elements() -> int:
    """Elements of all tensors that Python holds, except fake ones of a capture."""
    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter))


@pytest.mark.slow
@pytest.mark.parametrize("net", [GPT, Llama])
@pytest.mark.parametrize("homes", HOMES)
def test_a_hundred_steps(homes: str, net: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = WithLoss(net(layers=4))
    other = copy.deepcopy(model)
    optimizer, stepper = (AdamW(m.parameters(), lr=1e-3, fused=True) for m in (model, other))
    planner, budget = HOMES[homes]
    options: dict[str, Any] = {"planner": planner, "link": "1GB/s", "time_limit_s": 8}
    train = remat_compile.compile(model, (ids(0),), optimizer=optimizer, budget=budget, **options)
    assert isinstance(train, TrainingStep)
    plan = train.module.planned_step
    kinds = [plan.program.graph.anode[name].kind for name in plan.schedule.homes]
    parameters = len(list(model.parameters()))
    among = {"all": parameters, "states": 0, "chosen": parameters}
    if homes == "mixed":
        assert 0 < kinds.count("param") < parameters
    else:
        assert kinds.count("param") == among[homes]
    assert "opt_state" in kinds
    held: list[int] = []
    for seed in range(100):
        ours = train(ids(seed))
        stepper.zero_grad()
        loss = other(ids(seed))
        loss.backward()
        stepper.step()
        assert torch.equal(ours, loss)
        if seed in (20, 99):
            del ours, loss
            stepper.zero_grad()
            held.append(live_elements())
    assert held[0] == held[1]
    ours_state, theirs = train.state_dict(), other.state_dict()
    assert ours_state.keys() == theirs.keys()
    assert all(torch.equal(ours_state[name], theirs[name]) for name in theirs)
    states, others = (o.state_dict()["state"] for o in (optimizer, stepper))
    assert states.keys() == others.keys()
    assert all(torch.equal(states[i][key], others[i][key]) for i in others for key in others[i])
    proven = verify(plan.program, plan.schedule)
    assert isinstance(proven, ProvenPlan)
    use = measure_step(train.module, (ids(0),))
    assert use.measured_bytes == use.predicted_bytes == proven.proven.device_bytes
    assert use.host_measured_bytes == proven.proven.host_bytes
