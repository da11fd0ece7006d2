"""Terms that autograd adds to a sum of the step are told, and nothing else is."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import PlannedModule, build
from remat_compile.frontends.torch_export import export, lower

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.w = nn.Linear(6, 6), nn.Parameter(torch.eye(6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return ((self.a(x) @ self.w).sin() @ self.w).square().mean()


@pytest.fixture
def step() -> PlannedModule:
    with lower(export(ReadTwice(), (X,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


def messages(run: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if "FB0526" in str(one.message)]


def penalized(step: Any) -> None:
    (step(X) + step.w.square().sum()).backward()


WITH_TERMS: dict[str, Callable[[Any], object]] = {
    "behind": penalized,
    "before": lambda step: (step.w.square().sum() + step(X)).backward(),
    "autograd.grad": lambda step: torch.autograd.grad(step(X) + step.w.sum(), [step.w]),
    "of another call": lambda step: (step(X) + step(X)).backward(),
}


@pytest.mark.parametrize("loop", WITH_TERMS)
def test_a_term_from_outside_is_told_once(loop: str, step: Any) -> None:
    (message,) = messages(lambda: WITH_TERMS[loop](step))
    assert "w: the step gives a gradient, and something outside" in message
    assert messages(lambda: [WITH_TERMS[loop](step) for _ in range(8)]) == []
    assert not step.w._backward_hooks


def _twice(step: Any) -> None:
    loss = step(X)
    loss.backward(retain_graph=True)
    loss.backward()


def _hooked(step: Any) -> None:
    handle = step.w.register_hook(lambda gradient: gradient * 2)
    step(X).backward()
    handle.remove()


def _beside(step: Any) -> None:
    threads = [threading.Thread(target=lambda: step(X).backward()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WITHOUT: dict[str, Callable[[Any], object]] = {
    "a plain step": lambda step: step(X).backward(),
    "accumulated": lambda step: [step(X).backward() for _ in range(4)],
    "of another parameter": lambda step: (step(X) + step.a.weight.square().sum()).backward(),
    "the graph kept": _twice,
    "a hook of the user's": _hooked,
    "gradients of others": lambda step: [
        torch.autograd.grad(step(X), [step.a.weight]),
        step(X).backward(),
    ],
    "a copy": lambda step: [copy.deepcopy(step)(X).backward(), step(X).backward()],
    "threads": _beside,
}


@pytest.mark.parametrize("loop", WITHOUT)
def test_without_one_nothing_is_told(loop: str, step: Any) -> None:
    assert messages(lambda: WITHOUT[loop](step)) == []


def test_a_term_that_comes_later_is_told(step: Any) -> None:
    assert messages(lambda: [step(X).backward() for _ in range(3)]) == []
    assert messages(lambda: penalized(step)) != []


def test_the_gradient_is_that_of_eager_but_for_rounding(step: Any) -> None:
    eager = ReadTwice()
    eager.load_state_dict(step.state_dict())
    messages(lambda: penalized(step))
    (eager(X) + eager.w.square().sum()).backward()
    assert step.w.grad is not None
    assert eager.w.grad is not None
    torch.testing.assert_close(step.w.grad, eager.w.grad)
