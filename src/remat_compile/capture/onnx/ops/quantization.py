"""`QuantizeLinear` and `DequantizeLinear`.

Integers carry no gradient. Quantising what depends on a parameter is refused, unless the file
asks for straight-through gradients (model metadata `remat_compile.straight_through`): then the
quantised value travels as a float with its integer value, and rounding counts as the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import DTYPES, Call, Value
from ..table import register

_RANGES = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
}


@register("QuantizeLinear")
def quantize(call: Call, x: Value, scale: Value, zero: Value = None) -> Tensor:
    data = call.tensor(x)
    point = call.optional(zero)
    kind = DTYPES.get(call.integer("output_dtype", 0), torch.uint8)
    if point is not None:
        kind = point.dtype
    if kind not in _RANGES:
        call.refuse(f"quantising to {kind} is not supported")
    if data.requires_grad and not call.straight_through:
        call.refuse(
            "the input depends on a parameter, and integers carry no gradient",
            hint='set the model metadata "remat_compile.straight_through" to "yes"',
        )
    step = _along(call, call.tensor(scale), data).to(data.dtype)
    low, high = _RANGES[kind]
    scaled = data / step
    shift = 0 if point is None else _along(call, point.to(torch.int32), data)
    if data.requires_grad:
        inside = torch.clamp(scaled + shift, low, high)
        return inside + (torch.clamp(torch.round(scaled) + shift, low, high) - inside).detach()
    return torch.clamp(torch.round(scaled) + shift, low, high).to(torch.int32).to(kind)


@register("DequantizeLinear")
def dequantize(call: Call, x: Value, scale: Value, zero: Value = None) -> Tensor:
    data, step = call.tensor(x), call.tensor(scale)
    kind = DTYPES.get(call.integer("output_dtype", 0), step.dtype)
    level = data if data.is_floating_point() else data.to(torch.int32)
    if zero is not None:
        level = level - _along(call, call.tensor(zero).to(torch.int32), data)
    return (level.to(step.dtype) * _along(call, step, data)).to(kind)


def _along(call: Call, values: Tensor, data: Tensor) -> Tensor:
    """Scales or zero points for every element: one, one along `axis`, or one per block."""
    if values.numel() == 1:
        return values.reshape(())
    axis = call.axis(1, data.ndim)
    if values.ndim == 1:
        return values.reshape([-1 if i == axis else 1 for i in range(data.ndim)])
    size = call.integer("block_size", 0)
    if not size:
        call.refuse("scales of several dimensions need block_size")
    return values.repeat_interleave(size, axis).narrow(axis, 0, data.shape[axis])
