"""A parameter that two planned modules share: what autograd adds up between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile

OPTIONS: dict[str, Any] = {"activation_budget": "100%", "planner": "store-all"}
X = torch.linspace(-1, 1, 30).reshape(5, 6)


class Once(nn.Module):
    """Reads the weight that it shares once."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight + self.bias).tanh()


class Twice(Once):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.weight.t()


def together(one: nn.Module, other: nn.Module) -> None:
    made: Tensor = one(X).square().sum() + other(2 * X).sin().sum()
    made.backward()


def in_turn(one: nn.Module, other: nn.Module) -> None:
    one(X).square().sum().backward()
    other(2 * X).sin().sum().backward()


def pair(kind: type[Once], *, planned: bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 6))
    one, other = kind(weight), kind(weight)
    if not planned:
        return one, other
    return (
        remat_compile.compile(one, (X,), **OPTIONS),
        remat_compile.compile(other, (X,), **OPTIONS),
    )


def trained(
    models: tuple[nn.Module, nn.Module], step: Callable[[nn.Module, nn.Module], None]
) -> list[Tensor]:
    """Gradients and parameters of three steps."""
    parameters = dict.fromkeys(p for model in models for p in model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    seen: list[Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        step(*models)
        seen += [p.grad.clone() for p in parameters if p.grad is not None]
        optimizer.step()
    return [*seen, *(p.detach().clone() for p in parameters)]


@pytest.mark.parametrize(("kind", "step"), [(Once, together), (Once, in_turn), (Twice, in_turn)])
def test_gradients_are_those_of_eager(
    kind: type[Once], step: Callable[[nn.Module, nn.Module], None]
) -> None:
    """Two terms have one sum; those of two backwards are added behind each other in eager too."""
    expected = trained(pair(kind, planned=False), step)
    made = trained(pair(kind, planned=True), step)
    assert len(made) == len(expected) == 3 * 3 + 3
    assert all(map(torch.equal, made, expected))
