"""Calls that a record replays: the bits of eager, and no call on memory that another needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.execution.tape import Tape
from helpers.models import BASE, LOSS_INSIDE, MODELS
from helpers.programs.random_plans import random_plan
from helpers.slow import default_only
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import PlannedModule, build, measure_step
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError


def taped(module: nn.Module, args: Any, kwargs: Any = None, seed: int | None = 0) -> PlannedModule:
    """A step by a random plan, whose second call and all later ones run from a tape."""
    with lower(export(module, args, kwargs or {})) as lowered:
        return build(lowered, random_plan(Random(seed), lowered.program), recorder=Tape())


def tape(module: PlannedModule) -> Tape:
    graphs = module.planned_step.graphs
    assert graphs is not None
    assert isinstance(graphs.recorder, Tape)
    return graphs.recorder


def replayed(module: PlannedModule) -> int:
    graphs = module.planned_step.graphs
    assert graphs is not None
    return graphs.replayed


@pytest.mark.parametrize(
    ("name", "seed"),
    default_only(
        [(name, seed) for name in (*BASE, *LOSS_INSIDE) for seed in (0, 1)],
        [("mlp", 0), ("resnet", 1)],
    ),
)
def test_training(name: str, seed: int) -> None:
    make = MODELS[name]
    eager = train_steps(*make(torch.float32), steps=5)
    module, args, kwargs = make(torch.float32)
    planned = taped(module, args, kwargs, seed)
    assert_bit_equal(train_steps(planned, args, kwargs, steps=5), eager)
    assert replayed(planned) == 4
    assert tape(planned).records == 2


class Dropped(nn.Module):
    """Draws twice, between products."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.one(x)), 0.4)
        return torch.sigmoid(nn.functional.dropout(torch.sin(self.two(hidden)), 0.2))


def assert_drawn_again(model: nn.Module, where: str) -> None:
    """Random plans train as eager does, and some of them hold `where`."""
    x, again = torch.randn(6, 8), 0
    eager = train_steps(deepcopy(model), (x,), steps=6)
    for seed in range(8):
        planned = taped(deepcopy(model), (x,), seed=seed)
        assert_bit_equal(train_steps(planned, (x,), steps=6), eager)
        assert replayed(planned) == 5
        again += where in planned.planned_source
        assert ("replay(rng" in planned.planned_source) == (tape(planned).drawn > 0)
    assert again > 1


def test_what_is_drawn_again_is_what_was_drawn() -> None:
    torch.manual_seed(3)
    assert_drawn_again(Dropped(), "replay(rng_F")


class Noised(torch.autograd.Function):
    """Draws in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.rand_like(grad)


class NoisedTwice(Dropped):
    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.one(x)), 0.4)
        return torch.sigmoid(Noised.apply(self.two(Noised.apply(hidden))))


def test_what_a_backward_draws_is_drawn_again_there() -> None:
    """Attention counts as random in the backward on CUDA, whatever its dropout."""
    torch.manual_seed(3)
    assert_drawn_again(NoisedTwice(), "replay(rng_B")


@pytest.fixture
def planned() -> Iterator[PlannedModule]:
    """After two steps, so that a third one is replayed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    module = taped(model, (torch.randn(5, 4),))
    for _ in range(2):
        module(torch.randn(5, 4)).square().sum().backward()
    assert replayed(module) == 1
    module.zero_grad(set_to_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "(?s).*a second forward runs")
        yield module


def gradients(module: nn.Module) -> list[Tensor]:
    made = [p.grad for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    return made


def eagerly(module: PlannedModule, *inputs: Tensor) -> list[Tensor]:
    """The sum of the gradients of a few calls, in eager."""
    original = module._remat_compile_original()
    for x in inputs:
        original(x).square().sum().backward()
    return gradients(original)


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_results_and_gradients_are_the_callers(planned: PlannedModule) -> None:
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    wanted = eagerly(planned, x)
    first = planned(x)
    kept = first.detach().clone()
    first.square().sum().backward()
    mine = gradients(planned)
    planned(y).square().sum().backward()
    assert replayed(planned) == 3
    assert torch.equal(first, kept)
    assert_same(mine, wanted)


def test_gradients_accumulate(planned: PlannedModule) -> None:
    inputs = [torch.randn(5, 4) for _ in range(3)]
    wanted = eagerly(planned, *inputs)
    for x in inputs:
        planned(x).square().sum().backward()
    assert replayed(planned) == 4
    assert_same(gradients(planned), wanted)


def test_two_forwards_before_a_backward(planned: PlannedModule) -> None:
    """The second one runs without the record, whose memory the first one's backward needs."""
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    wanted = eagerly(planned, x, y)
    one, two = planned(x), planned(y)
    assert replayed(planned) == 2
    one.square().sum().backward()
    two.square().sum().backward()
    assert_same(gradients(planned), wanted)
    planned(x).square().sum().backward()
    assert replayed(planned) == 3


def test_a_forward_whose_backward_never_comes(planned: PlannedModule) -> None:
    x = torch.randn(5, 4)
    planned(x)
    wanted = eagerly(planned, x)
    planned(x).square().sum().backward()
    assert replayed(planned) == 3
    assert_same(gradients(planned), wanted)


def test_a_second_backward_is_refused(planned: PlannedModule) -> None:
    loss = planned(torch.randn(5, 4)).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(FBError, match=r"FB0965.*serves one backward"):
        loss.backward()


def test_a_call_that_ran_keeps_its_graph(planned: PlannedModule) -> None:
    x = torch.randn(5, 4)
    wanted = eagerly(planned, x, x)
    waiting = planned(x)
    loss = planned(x).square().sum()  # not replayed
    loss.backward(retain_graph=True)
    loss.backward()
    assert_same(gradients(planned), wanted)
    del waiting


def test_a_parameter_that_changes_before_the_backward(planned: PlannedModule) -> None:
    loss = planned(torch.randn(5, 4)).square().sum()
    with torch.no_grad():
        planned[2].weight.mul_(2)  # type: ignore[index]
    with pytest.raises(FBError, match="FB0962"):
        loss.backward()


def test_an_argument_that_changes_before_the_backward(planned: PlannedModule) -> None:
    x = torch.randn(5, 4)
    loss = planned(x).square().sum()
    x.zero_()
    with pytest.raises(FBError, match="FB0962"):
        loss.backward()


def test_parameters_that_lie_elsewhere_are_recorded_anew(planned: PlannedModule) -> None:
    x = torch.randn(5, 4)
    for p in planned.parameters():
        p.data = p.data.clone() * 2
    for _ in range(3):
        wanted = eagerly(planned, x)
        planned(x).square().sum().backward()
        assert_same(gradients(planned), wanted)
    assert replayed(planned) == 3
    assert tape(planned).records == 4


def test_parameters_that_always_lie_elsewhere(planned: PlannedModule) -> None:
    x = torch.randn(5, 4)

    def steps() -> None:
        for _ in range(24):
            for p in planned.parameters():
                p.data = p.data.clone()
            wanted = eagerly(planned, x)
            planned(x).square().sum().backward()
            assert_same(gradients(planned), wanted)

    with pytest.warns(UserWarning, match=r"FB0966.*lie elsewhere") as said:
        steps()
    assert len(said) == 1
    assert replayed(planned) == 1


def test_other_kernels_are_recorded_anew(
    planned: PlannedModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 4)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for _ in range(2):
        planned(x).square().sum().backward()
    assert tape(planned).records == 4


def test_a_copy_of_the_module_has_gradients_of_its_own(planned: PlannedModule) -> None:
    x, other = torch.randn(5, 4), deepcopy(planned)
    with torch.no_grad():
        other[0].weight.add_(1)  # type: ignore[index]
    for module in (planned, other, planned, other):
        wanted = eagerly(module, x)
        module(x).square().sum().backward()
        assert_same(gradients(module), wanted)


def test_measured_calls_run(planned: PlannedModule) -> None:
    use = measure_step(planned, (torch.randn(5, 4),))
    assert 0 < use.measured_bytes <= use.predicted_bytes
    assert replayed(planned) == 1


def test_a_step_that_cannot_be_recorded_runs_and_says_so() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(5, 4)
    module = taped(model, (x,))
    tape(module).refuses = True

    def steps() -> None:
        for _ in range(4):
            wanted = eagerly(module, x)
            module(x).square().sum().backward()
            assert_same(gradients(module), wanted)

    with pytest.warns(UserWarning, match=r"FB0966.*not permitted when stream") as said:
        steps()
    assert len(said) == 1
    assert "and more" not in str(said[0].message)


def expanded() -> Tensor:
    return torch.randn(1, 4).expand(5, 4)


def sliced() -> Tensor:
    return torch.randn(6, 9)[1:, 2:6]


@pytest.mark.parametrize("make", [expanded, sliced])
def test_an_argument_that_is_not_contiguous(make: Callable[[], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    inputs = [make() for _ in range(4)]
    module = taped(model, (inputs[0],))
    for x in inputs:
        wanted = eagerly(module, x)
        module(x).square().sum().backward()
        assert_same(gradients(module), wanted)
    assert replayed(module) == 3


@pytest.mark.filterwarnings("ignore:(?s).*a second forward runs")
@pytest.mark.parametrize("first", [1, 2])
def test_forwards_that_draw_before_their_backwards(first: int) -> None:
    """In the first step and in a later one, whose second forward is not replayed."""
    torch.manual_seed(3)
    model, x = Dropped(), torch.randn(6, 8)
    for seed in range(8):
        ours, own = taped(deepcopy(model), (x,), seed=seed), deepcopy(model)
        if "replay(" in ours.planned_source:
            break
    for count in (first, 2, 2, 1):
        for module in (own, ours):
            torch.manual_seed(count)
            module.zero_grad()
            for loss in [module(x).square().sum() for _ in range(count)]:
                loss.backward()
        assert_same(gradients(ours), gradients(own))
    assert replayed(ours) == 3
    assert tape(ours).drawn > 0


# -- where there are none ----------------------------------------------------------------------


def test_on_the_cpu() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with pytest.raises(FBError, match=r"FB0967.*lies on cpu"):
        remat_compile.compile(model, (x,), activation_budget="100%", cuda_graph=True)
    plan = remat_compile.plan(model, (x,), planner="store-all")
    with pytest.raises(FBError, match=r"FB0967.*lies on cpu"):
        plan.bind(cuda_graph=True)


def test_dynamic_sizes() -> None:
    from remat_compile.backends.torch import check_graphs

    with pytest.raises(FBError, match=r"FB0967.*sizes are dynamic"):
        check_graphs(torch.device("cuda"), is_dynamic=True)
