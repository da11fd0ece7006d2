"""Steps as CUDA graphs: bits of eager, random numbers too, and the memory that graphs keep."""

from __future__ import annotations

import gc
from copy import deepcopy
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.accelerator.offloaded import built, captured, plans_of, sample
from helpers.models import BASE
from helpers.programs.offloading import offload_everything
from helpers.programs.random_plans import random_plan
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, build, recorder_for
from remat_compile.backends.torch.graphs.cuda import CudaRecorder
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.schedule import Schedule

pytestmark = pytest.mark.slow

Sample = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
STEPS = 5
SHARES = (0.75, 0.6, 0.9)


def graphed(of: Sample, plan: Any) -> PlannedModule:
    """The step of a module by `plan(program)`."""
    with lower(export(*of)) as lowered:
        schedule: Schedule = plan(lowered.program)
        return build(lowered, schedule, recorder=recorder_for(lowered))


def replayed(module: nn.Module) -> int:
    assert isinstance(module, PlannedModule)
    graphs = module.planned_step.graphs
    assert graphs is not None
    return graphs.replayed


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize("plan", ["random", "copies"])
def test_training(gpu: torch.device, name: str, plan: str) -> None:
    """Dropout is in three of the models, and drawn again by the random plans."""
    eager = train_steps(*sample(name, gpu), steps=STEPS)
    after = torch.cuda.get_rng_state()
    for seed in range(3 if plan == "random" else 1):
        of = sample(name, gpu)

        def chosen(program: Any, seed: int = seed) -> Schedule:
            if plan == "random":
                return random_plan(Random(seed), program)
            return offload_everything(program)

        module = graphed(of, chosen)
        assert_bit_equal(train_steps(module, *of[1:], steps=STEPS), eager)
        assert torch.equal(torch.cuda.get_rng_state(), after)
        assert replayed(module) == STEPS - 1
        del module
        gc.collect()


@pytest.mark.parametrize("planner", ["offload-greedy", "rk-pofo"])
def test_plans_that_copy(gpu: torch.device, planner: str) -> None:
    of = captured("gpt", gpu)
    plans = [s for s in plans_of(planner, of, SHARES) if s.has_copies][:1]
    if not plans:
        pytest.skip(f"{planner} moves nothing")
    module = built(of, plans[0], CudaRecorder(gpu))
    assert_bit_equal(train_steps(module, of.args, of.kwargs, steps=3), of.eager)
    assert replayed(module) == 2


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.one(x)), 0.4)
        return torch.sigmoid(nn.functional.dropout(torch.sin(self.two(hidden)), 0.2))


def test_what_is_drawn_again_is_what_was_drawn(gpu: torch.device) -> None:
    torch.manual_seed(3)
    model, x = Dropped().to(gpu), torch.randn(48, 64, device=gpu)
    eager = train_steps(deepcopy(model), (x,), steps=STEPS)
    again = 0
    for seed in range(12):
        module = graphed((deepcopy(model), (x,), {}), lambda p, s=seed: random_plan(Random(s), p))
        assert_bit_equal(train_steps(module, (x,), steps=STEPS), eager)
        assert replayed(module) == STEPS - 1
        again += "replay(rng" in module.planned_source
    assert again > 3


def test_what_a_user_writes(gpu: torch.device) -> None:
    """The memory of the graphs is that of the plan, within what the allocator rounds up."""
    model, args, kwargs = sample("gpt-loss", gpu)
    eager = train_steps(deepcopy(model), args, kwargs, steps=STEPS)
    compiled = remat_compile.compile(
        model, args, kwargs, activation_budget="60%", planner="dtr", cuda_graph=True
    )
    assert_bit_equal(train_steps(compiled, args, kwargs, steps=STEPS), eager)
    assert replayed(compiled) == STEPS - 1


def test_a_second_backward_is_refused(gpu: torch.device) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(gpu), torch.randn(4, 8, device=gpu)
    compiled = remat_compile.compile(model, (x,), activation_budget="100%", cuda_graph=True)
    for _ in range(2):
        compiled(x).sum().backward()
    loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(FBError, match=r"FB0965"):
        loss.backward()


def test_a_tensor_of_the_host_among_the_arguments(gpu: torch.device) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            scaled: Tensor = self.linear(x) * scale
            return scaled.square().mean()

    model, x = Scaled().to(gpu), torch.randn(4, 8, device=gpu)
    compiled = remat_compile.compile(
        model, (x, torch.tensor(2.0)), activation_budget="100%", cuda_graph=True
    )

    def steps() -> None:
        for scale in map(torch.tensor, (1.0, 2.0, 3.0, 4.0)):
            assert torch.equal(compiled(x, scale), model(x, scale))
            compiled(x, scale).backward()

    with pytest.warns(UserWarning, match=r"FB0966.*lies on cpu"):
        steps()


def test_nothing_leaks(gpu: torch.device) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).to(gpu), torch.randn(32, 64, device=gpu)
    compiled = remat_compile.compile(model, (x,), activation_budget="100%", cuda_graph=True)

    def steps() -> None:
        for _ in range(50):
            compiled(x).sum().backward()
            compiled(x)
        compiled.zero_grad(set_to_none=True)

    steps()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for _ in range(10):
        steps()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held
