"""Gradients of views that a step returns: which there are, and in what order they are added."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import remat_compile


class DetachedView(nn.Module):
    """Returns a view of a result, without its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return y, y.detach()[0]


def test_a_detached_view_of_a_result_has_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_COMPILE_CACHE", str(tmp_path))
    x = torch.ones(3, 4)
    for _ in range(2):  # captured, and started again
        compiled = remat_compile.compile(DetachedView(), (x,), activation_budget="100%")
        y, part = compiled(x)
        assert (y.requires_grad, part.requires_grad) == (True, False)
        assert part.data_ptr() == y.data_ptr()
        part.mul_(2)  # of what autograd knows nothing
        assert y.detach()[0].equal(part)


class Viewed(nn.Module):
    """Returns `views` views of its argument, taken before it is read by a layer."""

    def __init__(self, views: int) -> None:
        super().__init__()
        self.layer, self.views = nn.Linear(6, 6), views

    def forward(self, scale: float, x: Tensor) -> tuple[Tensor, ...]:
        views = [x[1:], x.t(), x.view(-1)][: self.views]
        return (*views, self.layer(x) * scale)


@pytest.mark.parametrize("views", [1, 2, 3])
def test_gradients_that_autograd_adds_in_another_order_are_told(views: int) -> None:
    model = Viewed(views)
    x = torch.randn(4, 6, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remat_compile.compile(model, (2.0, x), planner="store-all", progress=False)
    messages = [str(w.message) for w in caught if "FB0529" in str(w.message)]
    assert len(messages) == (views > 1)
    assert all("views of args[1]:" in message for message in messages)


class Tied(nn.Module):
    """Multiplies by a parameter twice and returns it, or views of what it makes around its loss."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.w, self.kind = nn.Parameter(torch.eye(6)), kind

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = x @ self.w
        if self.kind == "one view":
            return (h.sin() @ self.w).sum(), h.t()
        if self.kind == "parameter":
            return (h.sin() @ self.w).sum(), self.w
        before = h.t()
        return h.sin().sum(), before, h.view(-1)


@pytest.mark.parametrize("kind", ["one view", "parameter", "around"])
def test_sums_of_several_uses_and_of_what_is_made_are_told(kind: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remat_compile.compile(Tied(kind), (torch.ones(4, 6),), planner="store-all", progress=False)
    messages = [str(w.message) for w in caught if "FB0529" in str(w.message)]
    assert len(messages) == (kind != "one view")
