"""Hooks of parameters and of the model itself, put there before or after compile: as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.c.weight = self.a.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(x))))) * self.scale
        return y


Note = Callable[[object], None]


def _changing(model: Any, note: Note) -> None:
    def doubled(gradient: Tensor) -> Tensor:
        note(gradient.clone())
        return gradient * 2

    model.a.weight.register_hook(doubled)
    model.b.bias.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


def _looking(model: Any, note: Note) -> None:
    """One only: of several, those of a step run behind its backward, in an order of their own."""
    model.b.weight.register_hook(lambda gradient: note(gradient.clone()))


def _removed(model: Any, note: Note) -> None:
    handle = model.b.weight.register_hook(note)
    model.b.weight.register_hook(lambda gradient: gradient + 1)
    handle.remove()


def _accumulated(model: Any, note: Note) -> None:
    model.a.weight.register_post_accumulate_grad_hook(lambda p: note(p.grad.clone()))


def _stepping(model: Any, note: Note) -> None:
    """An optimizer in the backward, as those do that never hold all gradients."""

    @torch.no_grad()
    def step(p: Tensor) -> None:
        assert p.grad is not None
        p -= 0.1 * p.grad
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)


def _of_accumulation(model: Any, note: Note) -> None:
    node = model.a.weight.view_as(model.a.weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: note("accumulated"))
    model.__dict__["kept"] = (node,)


def _pre(model: Any, note: Note) -> None:
    model.register_forward_pre_hook(lambda _, args: (args[0] * 2,))


def _pre_with_kwargs(model: Any, note: Note) -> None:
    model.register_forward_pre_hook(lambda _, a, k: ((a[0] * 2,), k), with_kwargs=True)


def _post(model: Any, note: Note) -> None:
    model.register_forward_hook(lambda _, __, made: made * 3)


def _backward_pre(model: Any, note: Note) -> None:
    def doubled(_: nn.Module, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        note(gradients[0].clone())
        return (gradients[0] * 2,)

    model.register_full_backward_pre_hook(doubled)


def _backward(model: Any, note: Note) -> None:
    model.register_full_backward_hook(lambda _, __, grads: note(grads[0].clone()))


OF_TENSORS = (_changing, _looking, _removed, _accumulated, _stepping, _of_accumulation)
OF_MODEL = (_pre, _pre_with_kwargs, _post, _backward_pre, _backward)
X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
OPTIONS: dict[str, Any] = {"activation_budget": "100%", "planner": "dtr"}


@pytest.fixture(scope="module")
def compiled() -> nn.Module:
    return remat_compile.compile(Tied(), (X,), **OPTIONS)


@pytest.mark.parametrize("hook", [*OF_TENSORS, *OF_MODEL])
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_run_as_in_eager(
    hook: Callable[[Any, Note], None], when: str, compiled: nn.Module
) -> None:
    seen: dict[str, list[object]] = {"eager": [], "ours": []}
    eager, model = Tied(), Tied()
    hook(eager, seen["eager"].append)
    if when == "before":
        hook(model, seen["ours"].append)
        ours = remat_compile.compile(model, (X,), **OPTIONS)
        assert seen["ours"] == []  # and none at compile
    else:
        ours = copy.deepcopy(compiled)
        hook(ours, seen["ours"].append)
    assert_bit_equal(train_steps(eager, (X,)), train_steps(ours, (X,)))
    assert len(seen["eager"]) == len(seen["ours"])
    for theirs, own in zip(seen["eager"], seen["ours"], strict=True):
        assert torch.equal(theirs, own) if isinstance(theirs, Tensor) else theirs == own


def test_hooks_of_the_sample_are_not_part_of_what_is_compared() -> None:
    x = X.detach().clone().requires_grad_()
    seen: list[Tensor] = []

    def fivefold(gradient: Tensor) -> Tensor:
        seen.append(gradient)
        return gradient * 5

    x.register_hook(fivefold)
    ours = remat_compile.compile(Tied(), (x,), **OPTIONS)
    assert not seen
    ours(x).sum().backward()
    assert len(seen) == 1
    assert x.grad is not None
    assert torch.equal(x.grad, seen[0] * 5)


@pytest.mark.parametrize("kind", ["register_full_backward_pre_hook", "register_forward_pre_hook"])
def test_hooks_of_submodules_are_captured_before_and_refused_after(kind: str) -> None:
    def doubled(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0] * 2,)

    eager, model = Tied(), Tied()
    for one in (eager, model):
        getattr(one.b, kind)(doubled)
    ours = remat_compile.compile(model, (X,), **OPTIONS)
    assert_bit_equal(train_steps(eager, (X,)), train_steps(ours, (X,)))
    getattr(ours.b, kind)(doubled)
    with pytest.raises(FBError, match=r"FB0910.*b\._\w+_hooks"):
        ours(X)
