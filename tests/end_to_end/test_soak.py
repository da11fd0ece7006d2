"""A long training: random batch sizes, accumulation and clipping, and memory stays flat.

What is compared with is the original model, in eager, on the same batches and random states.
"""

from __future__ import annotations

import array
import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import remat_compile
from helpers.training import assert_same_tensors
from remat_compile.regions import remat

pytestmark = pytest.mark.slow

STEPS, SETTLED, WIDTH = 2_000, 500, 16
SIZES = (3, 4, 5, 8)
BYTES, BLOCKS = 2 * 2**20, 2_000
"""What may grow from step 500 to the end: resident bytes, and objects of Python."""


class Net(nn.Module):
    """Dropout, running statistics, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(self.norm(self.drop(layer(x))))
        return F.linear(x, self.layers[0].weight)


class LooksIntoItsData(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x * 2 if float(x.detach().sum()) > 0 else x - 1


def by_symbols() -> nn.Module:
    batch = torch.export.Dim("batch", min=2, max=16)
    shapes = ({0: batch},)
    x = torch.randn(SIZES[0], WIDTH)
    return remat_compile.compile(
        Net(), (x,), dynamic_shapes=shapes, costs="roofline", device="cpu", planner="chen"
    )


def by_new_plans() -> nn.Module:
    x = torch.randn(SIZES[0], WIDTH)
    options: dict[str, Any] = {"costs": "roofline", "device": "cpu", "planner": "chen"}
    return remat_compile.compile(Net(), (x,), on_new_shape="replan", **options)


def by_regions() -> Any:
    torch._dynamo.reset()
    options = {"planner": "dtr", "activation_budget": "90%"}
    return torch.compile(LooksIntoItsData(), backend=remat, options=options)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def train(model: nn.Module, seen: Callable[[int, float], None]) -> None:
    """`STEPS` backwards; an optimizer step after one to three of them, gradients clipped."""
    draws = random.Random(1)
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    left = draws.randint(1, 3)
    for step in range(STEPS):
        x = torch.randn(draws.choice(SIZES), WIDTH)
        loss = model(x).square().mean()
        (loss / 2).backward()
        seen(step, loss.item())
        left -= 1
        if not left:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            left = draws.randint(1, 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident bytes by /proc")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [by_symbols, by_new_plans, by_regions])
def test_two_thousand_steps(way: Callable[[], Any]) -> None:
    model = way()
    twin = LooksIntoItsData() if way is by_regions else Net()
    losses = [array.array("d", bytes(8 * STEPS)) for _ in range(2)]
    use: dict[int, tuple[int, int, int]] = {}

    def seen(step: int, loss: float) -> None:
        losses[0][step] = loss
        if step in (SETTLED, STEPS - 1):
            gc.collect()
            tensors = sum(isinstance(o, Tensor) for o in gc.get_objects())
            use[step] = (resident_bytes(), sys.getallocatedblocks(), tensors)

    train(model, seen)
    train(twin, losses[1].__setitem__)
    assert losses[0] == losses[1]
    ours, theirs = (
        {n.removeprefix("_orig_mod."): t.detach() for n, t in m.state_dict().items()}
        for m in (model, twin)
    )
    assert_same_tensors(ours, theirs, "state")
    early, late = use[SETTLED], use[STEPS - 1]
    assert late[0] - early[0] <= BYTES, f"resident bytes: {early[0]} to {late[0]}"
    assert late[1] - early[1] <= BLOCKS, f"blocks of Python: {early[1]} to {late[1]}"
    assert late[2] <= early[2] + 4, f"tensors: {early[2]} to {late[2]}"
