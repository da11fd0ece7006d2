"""Sample calls of every ATen operator that JAX can run: what the lowerings are tested on.

`samples(op, dtype)` gives calls on PyTorch tensors, the floating ones of `dtype`, seeded
by the operator's name. Backward operators get what their forward returned. The calls are
in the modules beside this one, which fill `SAMPLES` when they are imported.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


@dataclass(frozen=True)
class Make:
    """Makes tensors: `f` normal floats, `pos` in [0.3, 2.3], `unit` in (0, 1), `i` integers
    below a bound, `b` bool."""

    dtype: torch.dtype

    def f(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).to(self.dtype)

    def pos(self, *shape: int) -> Tensor:
        return (torch.rand(shape, dtype=torch.float64) * 2 + 0.3).to(self.dtype)

    def unit(self, *shape: int) -> Tensor:
        return (torch.rand(shape, dtype=torch.float64) * 0.8 + 0.1).to(self.dtype)

    def i(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape)

    def b(self, *shape: int) -> Tensor:
        return torch.rand(shape) < 0.5


Samples = Callable[[Make], list[Call]]
SAMPLES: dict[str, Samples] = {}
RANDOM: set[str] = {
    "aten.bernoulli.default",
    "aten.bernoulli.p",
    "aten.exponential.default",
    "aten.native_dropout.default",
    "aten.rand.default",
    "aten.rand_like.default",
    "aten.randint.default",
    "aten.randint.low",
    "aten.randn.default",
    "aten.randn_like.default",
    "aten.randperm.default",
}
"""Operators that draw: tested by statistics elsewhere."""


def samples(op: str, dtype: torch.dtype) -> list[Call]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(op.encode()))
        return SAMPLES[op](Make(dtype))


def add(ops: str, made: Samples) -> None:
    """The same samples for each of the operators, named without `aten.`."""
    for op in ops.split():
        assert f"aten.{op}" not in SAMPLES, op
        SAMPLES[f"aten.{op}"] = made


def all_dtypes(m: Make) -> list[Call]:
    """A floating matrix, a scalar array, integers and bool."""
    return [call(m.f(3, 4)), call(m.f()), call(m.i(4, 5)), call(m.b(5))]
