"""The harness itself: it passes on what is equal, and sees each kind of difference."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from helpers.models import BASE, MODELS
from helpers.slow import default_only
from helpers.training import Record, assert_bit_equal, difference, train_steps


def run(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Record:
    module, args, kwargs = MODELS[name](dtype)
    return train_steps(module, args, kwargs, **options)


class Checkpointed(nn.Module):
    """The framework's own recompute, as a second implementation to compare with eager."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.inner, *args, use_reentrant=False, **kwargs)


def renamed(record: Record) -> Record:
    """The record without the prefix that a wrapper puts before every name."""
    return Record(
        tuple(
            replace(s, grads={n.removeprefix("inner."): g for n, g in s.grads.items()})
            for s in record.steps
        ),
        {n.removeprefix("inner."): p for n, p in record.params.items()},
        {n.removeprefix("inner."): b for n, b in record.buffers.items()},
    )


@pytest.mark.parametrize("dtype", default_only([torch.float32, torch.float64], [torch.float32]))
@pytest.mark.parametrize("name", MODELS)
def test_two_eager_runs_are_bit_equal(name: str, dtype: torch.dtype) -> None:
    assert_bit_equal(run(name, dtype), run(name, dtype))


@pytest.mark.parametrize("name", [name for name in BASE if name != "resnet"])
def test_framework_checkpoint_is_bit_equal(name: str) -> None:
    module, args, kwargs = MODELS[name](torch.float32)
    assert_bit_equal(renamed(train_steps(Checkpointed(module), args, kwargs)), run(name))


def test_a_doubly_updated_buffer_is_seen() -> None:
    """`torch.utils.checkpoint` runs BatchNorm's update twice."""
    module, args, kwargs = MODELS["resnet"](torch.float32)
    ours = renamed(train_steps(Checkpointed(module), args, kwargs))
    with pytest.raises(AssertionError, match=r"buffer stem\.1\.num_batches_tracked"):
        assert_bit_equal(ours, run("resnet"))


def test_redrawn_dropout_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"step 1: output \[0\]"):
        assert_bit_equal(run("gpt", seed=1), run("gpt", seed=2))


def test_one_wrong_bit_of_a_gradient_is_seen() -> None:
    good = run("mlp")
    name = "layers.0.weight"
    spoilt = good.steps[1].grads[name]
    assert spoilt is not None
    spoilt = spoilt.clone()
    spoilt.view(torch.int32)[0, 0] ^= 1
    steps = list(good.steps)
    steps[1] = replace(steps[1], grads={**steps[1].grads, name: spoilt})
    with pytest.raises(AssertionError, match=r"step 2: gradient of layers\.0\.weight: 1 of 768"):
        assert_bit_equal(replace(good, steps=tuple(steps)), good)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), r"float32\[2\] for float64\[2\]"),
        (torch.zeros(2), torch.zeros(3), r"float32\[2\] for float32\[3\]"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "first at"),
        (torch.tensor(1.0), torch.tensor(2.0), "largest difference 1"),
        (torch.tensor([True]), torch.tensor([False]), "1 of 1"),
        (torch.zeros(2), None, "for None"),
    ],
)
def test_difference_says_what_differs(ours: Tensor, theirs: Tensor | None, why: str) -> None:
    text = difference(ours, theirs)
    assert text is not None
    assert re.search(why, text)


def test_difference_accepts_nan_and_layout() -> None:
    nan = torch.full((2, 3), float("nan"))
    assert difference(nan, nan.clone()) is None
    assert difference(torch.ones(2, 3), torch.ones(3, 2).t()) is None
    assert difference(None, None) is None
