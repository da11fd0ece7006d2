"""Gradients of views that a step returns."""

from __future__ import annotations

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
