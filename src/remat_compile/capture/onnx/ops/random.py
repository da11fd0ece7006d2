"""Operators that draw random numbers (from PyTorch's generator; ONNX `seed` is not honoured)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, Call, Known, Value
from ..table import register


@register("Dropout", random=True)
def dropout(call: Call, x: Value, ratio: Value = None, training: Value = None) -> Any:
    data = call.tensor(x)
    on = call.opset >= 12 and bool(call.scalar(training, "training_mode", False))
    if not on:
        mask = torch.ones_like(data, dtype=torch.bool) if call.has(1) else None
        return (data, mask) if call.has(1) else data
    p = _ratio(call, ratio)
    return torch.native_dropout(data, p, True) if call.has(1) else F.dropout(data, p, True)


def _ratio(call: Call, ratio: Value) -> float:
    """The known ratio as the double its exporter had: 0.1, not 0.10000000149."""
    if isinstance(ratio, Known) and ratio.decimal is not None:
        return ratio.decimal
    return float(call.scalar(ratio, "ratio", 0.5))


def _dtype(call: Call, like: Tensor | None = None) -> torch.dtype:
    default = torch.float32 if like is None else like.dtype
    return DTYPES.get(call.integer("dtype", 0), default)


@register("RandomNormalLike", "RandomUniformLike", random=True)
def random_like(call: Call, x: Value) -> Tensor:
    data = x.data if isinstance(x, Known) else call.tensor(x)
    return _draw(call, list(data.shape), _dtype(call, data), data.device)


@register("RandomNormal", "RandomUniform", random=True)
def random_of_shape(call: Call) -> Tensor:
    return _draw(call, call.integers("shape", ()), _dtype(call), None)


def _draw(call: Call, shape: list[int], dtype: torch.dtype, device: Any) -> Tensor:
    if call.op.startswith("RandomNormal"):
        mean, scale = call.number("mean", 0.0), call.number("scale", 1.0)
        return torch.randn(shape, dtype=dtype, device=device) * scale + mean
    low, high = call.number("low", 0.0), call.number("high", 1.0)
    return torch.rand(shape, dtype=dtype, device=device) * (high - low) + low


@register("Bernoulli", random=True)
def bernoulli(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    # The standard compares with a uniform number: what is no probability is never or always 1.
    chance = torch.nan_to_num(data, nan=0.0).clamp(0.0, 1.0)
    return torch.bernoulli(chance).to(_dtype(call, data))


@register("Multinomial", random=True)
def multinomial(call: Call, x: Value) -> Tensor:
    dtype = DTYPES[call.integer("dtype", 6)]
    logs = call.tensor(x)
    count = call.integer("sample_size", 1)
    return torch.multinomial(logs.exp(), count, replacement=True).to(dtype)
