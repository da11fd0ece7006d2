"""Kernels and tensors that lie in memory otherwise than they were made for."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import needs_compiler
from remat_compile.ir.diagnostics import FBError


class Scaled(nn.Module):
    """A parameter that kernels of the forward and of the backward read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4, 4, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x) * self.scale
        return torch.tanh(h) * torch.sigmoid(h) + h


def results(model: nn.Module, owner: nn.Module, x: Tensor) -> list[Tensor | None]:
    owner.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(None if p.grad is None else p.grad.clone() for p in owner.parameters())]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


@needs_compiler
@pytest.mark.parametrize("laid", [transposed, channels_last])
def test_parameters_in_other_strides_are_refused(laid: Callable[[Tensor], Tensor]) -> None:
    """`.data` at the same place, of the same length: a kernel would read it as it was before."""
    model, x = Scaled(), torch.randn(4, 4, 4, 4)
    with pytest.warns(UserWarning, match="FB0470"):
        step = remat_compile.compile(
            model, (x,), planner="store-all", fuse="inductor", progress=False
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = results(step, model, x)
    for made, wanted in zip(before, results(model, model, x), strict=True):
        torch.testing.assert_close(made, wanted)
    model.scale.data = laid(model.scale.data)
    with pytest.raises(FBError, match=r"FB0910.*scale stride mismatch"):
        step(x)
