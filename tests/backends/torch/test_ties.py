"""Tied weights stay what they were at capture, and what is loaded is what is trained."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import GuardFailure, PlannedModule, build
from remat_compile.capture.torch import export, lower

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Pair(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.b(self.a(x).tanh())).square().sum()


def planned(model: nn.Module) -> PlannedModule:
    with lower(export(model, (X,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


UNTIED: dict[str, Callable[[Pair], object]] = {
    "loaded": lambda m: m.load_state_dict(
        {key: value.clone() for key, value in m.state_dict().items()}, assign=True
    ),
    "set": lambda m: setattr(m.b, "weight", nn.Parameter(m.a.weight.detach().clone())),
}


@pytest.mark.parametrize("way", UNTIED)
@pytest.mark.parametrize("of", ["the drop-in", "a copy"])
def test_weights_that_are_no_longer_tied_are_refused(way: str, of: str) -> None:
    step: Any = planned(Pair(tied=True))
    step = copy.deepcopy(step) if of == "a copy" else step
    step(X)
    UNTIED[way](step)
    with pytest.raises(GuardFailure, match=r"a\.weight and b\.weight are no longer one tensor"):
        step(X)
    step.b.weight = step.a.weight
    step(X).backward()


def test_weights_that_are_tied_later_are_refused() -> None:
    step: Any = planned(Pair(tied=False))
    step.b.weight = step.a.weight
    with pytest.raises(GuardFailure, match=r"a\.weight and b\.weight are one tensor now"):
        step(X)


@pytest.mark.parametrize("through", ["the drop-in", "the model"])
def test_what_is_assigned_by_load_state_dict_is_trained(through: str) -> None:
    model, eager, others = Pair(tied=False), Pair(tied=False), Pair(tied=False)
    step: Any = planned(model)
    step(X).backward()
    for of in (eager, step if through == "the drop-in" else model):
        state = {key: value.clone() for key, value in others.state_dict().items()}
        of.load_state_dict(state, assign=True)
    for of in (eager, step):
        of.zero_grad()
        of(X).backward()
    for ours, its in zip(step.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None
        assert its.grad is not None
        assert ours.equal(its)
        assert ours.grad.equal(its.grad)
    assert all(a.equal(b) for a, b in zip(step.buffers(), eager.buffers(), strict=True))


def test_what_is_assigned_in_another_dtype_is_refused_before_anything_runs() -> None:
    step: Any = planned(Pair(tied=False))
    state = {key: value.double() for key, value in step.state_dict().items()}
    step.load_state_dict(state, assign=True)
    means = step.norm.running_mean.clone()
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(GuardFailure, match=r"dtype mismatch") as refused,
    ):
        step(X)
    assert [d.code for d in refused.value.diagnostics] == ["FB0910"]
    assert step.norm.running_mean.equal(means)
