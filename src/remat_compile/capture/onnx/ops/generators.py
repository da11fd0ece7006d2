"""Constants, and random numbers from PyTorch's generator (ONNX `seed` is not honoured)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, Call, Known, Value
from ..table import register


@register("Constant")
def constant(call: Call) -> Tensor:
    """The value attributes of `Constant`; tensors arrive already converted."""
    given = call.attributes
    if "value" in given:
        value: Tensor = given["value"]
        return value
    for kind, dtype in (("float", torch.float32), ("int", torch.int64)):
        for name in (f"value_{kind}", f"value_{kind}s"):
            if name in given:
                return torch.tensor(given[name], dtype=dtype)
    return call.refuse("only tensor and number values are supported")


@register("ConstantOfShape")
def constant_of_shape(call: Call, shape: Value) -> Tensor:
    value: Tensor = call.attributes.get("value", torch.zeros(1))
    return value.reshape(()).expand(call.ints(shape, "shape")).clone()


_COSINES = {
    "BlackmanWindow": (0.42, -0.5, 0.08),
    "HammingWindow": (25 / 46, -21 / 46),
    "HannWindow": (0.5, -0.5),
}
"""Coefficients of the cosines that a window is the sum of."""


@register(*_COSINES)
def window(call: Call, size: Value) -> Tensor:
    count = int(call.scalar(size, "size"))
    span = count if call.flag("periodic", True) else count - 1
    steps = torch.arange(count, dtype=torch.float64) * (2 * torch.pi / max(span, 1))
    total = sum(a * torch.cos(k * steps) for k, a in enumerate(_COSINES[call.op]))
    assert isinstance(total, Tensor)
    return total.to(DTYPES[call.integer("output_datatype", 1)])


@register("Range")
def range_(call: Call, start: Value, limit: Value, delta: Value) -> Tensor:
    first = start.data if isinstance(start, Known) else call.tensor(start)
    numbers = [call.scalar(v, "start, limit and delta") for v in (start, limit, delta)]
    return torch.arange(*numbers, dtype=first.dtype)


@register("EyeLike")
def eye_like(call: Call, x: Value) -> Tensor:
    data = x.data if isinstance(x, Known) else call.tensor(x)
    dtype = DTYPES.get(call.integer("dtype", 0), data.dtype)
    rows, columns = data.shape
    k = call.integer("k", 0)
    ones = torch.ones(rows, columns, dtype=dtype, device=data.device)
    return ones.triu(k).tril(k)


@register("Dropout", random=True)
def dropout(call: Call, data: Tensor, ratio: Value = None, training: Value = None) -> Any:
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
def bernoulli(call: Call, data: Tensor) -> Tensor:
    # The standard compares with a uniform number: what is no probability is never or always 1.
    chance = torch.nan_to_num(data, nan=0.0).clamp(0.0, 1.0)
    return torch.bernoulli(chance).to(_dtype(call, data))


@register("Multinomial", random=True)
def multinomial(call: Call, logs: Tensor) -> Tensor:
    dtype = DTYPES[call.integer("dtype", 6)]
    count = call.integer("sample_size", 1)
    return torch.multinomial(logs.exp(), count, replacement=True).to(dtype)
