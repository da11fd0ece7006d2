"""Memory that nobody wrote is no function of its arguments: the graph has zeros in its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile import FBError
from remat_compile.operators import effects


class Depth(nn.Module):
    """Drops whole samples, as stochastic depth does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.empty(x.shape[0], 1, dtype=x.dtype).bernoulli_(0.5)
        like = torch.empty_like(x)
        like[:] = x
        return self.fc(like * kept) * x.new_empty(1).fill_(2.0)


class Turned(nn.Module):
    """Leaves memory unwritten whose strides no operator of zeros makes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.empty_strided((3, 4), (1, 3))
        turned[0] = x[0]
        return self.fc(turned)


def test_zeros_stand_for_what_is_unwritten() -> None:
    plan = remat_compile.plan(Depth(), (torch.ones(3, 4),), costs="roofline", device="cpu")
    used = {call.op for c in plan.graph.cnodes for call in c.call.parts()}
    assert not any(known.is_unwritten for op in used if (known := effects(op)) is not None)
    assert any(c.token is not None for c in plan.graph.cnodes)


def test_what_has_no_zeros_is_refused() -> None:
    with pytest.raises(FBError) as caught:
        remat_compile.plan(Turned(), (torch.ones(3, 4),))
    assert caught.value.diagnostics[0].code == "FB0507"
    assert "leaves its result unwritten" in caught.value.diagnostics[0].message
