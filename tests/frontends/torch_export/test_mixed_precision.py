"""Half precision, autocast and scaled losses: the bits of the original model in eager."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import remat_compile
from helpers.execution.run_again import RunAgain
from helpers.slow import default_only
from helpers.training import assert_bit_equal, assert_same_tensors, train_steps
from remat_compile import FBError

AGAIN: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}
"""Everything that may run again does: replays of random operators too."""


class Blocks(nn.Module):
    """One weight in every block, used in float32 too, and one tied to the embedding."""

    def __init__(self, p: float = 0.1, dtype: torch.dtype = torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(17, 8)
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.drop = nn.Dropout(p)
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for _ in range(2):
            y = self.inner(self.norm(x))[:, None]
            y = F.scaled_dot_product_attention(y, y, y, dropout_p=self.drop.p)[:, 0]
            x = x + self.drop(torch.relu(y))
        with torch.autocast("cpu", enabled=False):
            x = self.inner(x.to(self.inner.weight.dtype))
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


TOKENS = torch.arange(24).reshape(4, 6) % 17


@pytest.mark.parametrize(
    ("dtype", "p"),
    [
        (torch.float32, 0.15),  # 1 / 0.85 is another number in float32 and in float64
        pytest.param(torch.bfloat16, 0.1, marks=pytest.mark.slow),
        pytest.param(torch.float16, 0.3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_dropout(dtype: torch.dtype, p: float) -> None:
    ours = remat_compile.compile(Blocks(p, dtype), (TOKENS,), **AGAIN)
    steps = [train_steps(model, (TOKENS,), steps=2) for model in (ours, Blocks(p, dtype))]
    assert_bit_equal(*steps)


@contextmanager
def low_precision(*, cache: bool = True) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
        yield


@pytest.mark.parametrize("cache", default_only([True, False], [True]))
def test_autocast(cache: bool) -> None:
    with low_precision(cache=cache):
        ours = remat_compile.compile(Blocks(), (TOKENS,), **AGAIN)
    theirs = Blocks()
    for seed in range(2):
        losses = []
        for model in (ours, theirs):
            model.zero_grad()
            torch.manual_seed(seed)
            with low_precision(cache=cache):
                losses.append(model(TOKENS))
            losses[-1].backward()
        assert torch.equal(*losses)
        grads = [{n: p.grad for n, p in model.named_parameters()} for model in (ours, theirs)]
        assert_same_tensors(grads[0], grads[1], "gradient")


@pytest.mark.parametrize("cache", [True, False])
def test_forwards_that_eager_would_let_share_casts_are_warned_about(cache: bool) -> None:
    with low_precision(cache=cache):
        ours = remat_compile.compile(nn.Linear(4, 4), (torch.ones(2, 4),), **AGAIN)
        first = ours(torch.ones(2, 4))
        with pytest.warns(UserWarning, match="second forward") as said:
            second = ours(torch.ones(2, 4))
    assert ("share the casts" in str(said[0].message)) is cache
    (first + second).sum().backward()


def refused(call: Any) -> str:
    with pytest.raises(FBError) as error:
        call()
    assert [d.code for d in error.value.diagnostics] == ["FB0910"]
    return str(error.value)


def test_a_call_under_another_autocast_is_refused() -> None:
    with low_precision():
        ours = remat_compile.compile(nn.Linear(4, 4), (torch.ones(2, 4),), **AGAIN)
    assert "autocast is off; at capture it was on in bfloat16" in refused(
        lambda: ours(torch.ones(2, 4))
    )
    with torch.autocast("cpu", torch.float16):
        assert "autocast is on in float16" in refused(lambda: ours(torch.ones(2, 4)))
    with low_precision(cache=False):
        assert "without its cache" in refused(lambda: ours(torch.ones(2, 4)))


def test_a_backward_inside_autocast_is_refused() -> None:
    ours = remat_compile.compile(nn.Linear(4, 4), (torch.ones(2, 4),), **AGAIN)
    loss = ours(torch.ones(2, 4)).sum()
    with low_precision():
        assert "inside torch.autocast" in refused(loss.backward)


def test_scaled_losses_and_skipped_steps() -> None:
    original = Blocks()
    with torch.autocast("cpu", torch.float16):
        ours = remat_compile.compile(copy.deepcopy(original), (TOKENS,), **AGAIN)
    scales = []
    for model in (ours, original):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        # 2 ** 40 overflows float16: the first steps are skipped, and the scale shrinks.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
        seen = []
        for step in range(30):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(TOKENS)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            seen.append(scaler.get_scale())
        scales.append(seen)
    assert scales[0] == scales[1]
    assert len(set(scales[0])) > 10
    params = [dict(model.named_parameters()) for model in (ours, original)]
    assert_same_tensors(params[0], params[1], "parameter")
