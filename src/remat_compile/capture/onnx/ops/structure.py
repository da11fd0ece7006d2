"""Operators that make tensors from shapes, or sort by position."""

from __future__ import annotations

import math
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


@register("OneHot")
def one_hot(call: Call, indices: Value, depth: Value, values: Value) -> Tensor:
    index = call.tensor(indices)
    count = int(call.scalar(depth, "depth"))
    off, on = call.tensor(values).unbind(0)
    axis = call.axis(-1, index.ndim + 1)
    wrapped = index.to(torch.int64)
    wrapped = torch.where(wrapped < 0, wrapped + count, wrapped).unsqueeze(axis)
    shape = [1] * (index.ndim + 1)
    shape[axis] = count
    positions = torch.arange(count, device=index.device).reshape(shape)
    return torch.where(positions == wrapped, on, off)


@register("Col2Im")
def col2im(call: Call, x: Value, image: Value, block: Value) -> Tensor:
    data = call.tensor(x)
    sizes, kernel = call.ints(image, "image_shape"), call.ints(block, "block_shape")
    rank = len(sizes)
    pads = call.integers("pads", [0] * 2 * rank)
    dilations, strides = (
        call.integers("dilations", [1] * rank),
        call.integers("strides", [1] * rank),
    )
    if rank != 2 or pads[:rank] != pads[rank:]:
        return _fold(data, sizes, kernel, dilations, pads, strides)
    fold: Any = F.fold
    result: Tensor = fold(
        data, sizes, kernel, dilation=dilations, padding=pads[:rank], stride=strides
    )
    return result


def _fold(
    data: Tensor,
    sizes: list[int],
    kernel: list[int],
    dilations: list[int],
    pads: list[int],
    strides: list[int],
) -> Tensor:
    """`F.fold` in any number of dimensions: every element is added where it lies in the padded
    image, of which the middle is the result."""
    rank = len(sizes)
    padded = [sizes[i] + pads[i] + pads[i + rank] for i in range(rank)]
    place = torch.zeros([1] * 2 * rank, dtype=torch.int64, device=data.device)
    for i in range(rank):  # axes of `place`: those of the kernel, then those of the blocks
        blocks = (padded[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for axis, steps, stride in ((i, kernel[i], dilations[i]), (rank + i, blocks, strides[i])):
            shape = [-1 if j == axis else 1 for j in range(2 * rank)]
            along = torch.arange(steps, device=data.device) * (stride * math.prod(padded[i + 1 :]))
            place = place + along.reshape(shape)
    flat = data.reshape(data.shape[0], -1, place.numel())
    image = flat.new_zeros(*flat.shape[:2], math.prod(padded))
    image = image.index_add(2, place.reshape(-1), flat).reshape(*flat.shape[:2], *padded)
    for i in range(rank):
        image = image.narrow(2 + i, pads[i], sizes[i])
    return image


@register("ReverseSequence")
def reverse_sequence(call: Call, x: Value, lengths: Value) -> Tensor:
    data, length = call.tensor(x), call.tensor(lengths)
    batch, time = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    moved = data.movedim((batch, time), (0, 1))
    steps = torch.arange(moved.shape[1], device=data.device).unsqueeze(0)
    order = torch.where(steps < length.unsqueeze(1), length.unsqueeze(1) - 1 - steps, steps)
    index = order.reshape(*order.shape, *([1] * (moved.ndim - 2))).expand(moved.shape)
    return moved.gather(1, index).movedim((0, 1), (batch, time))


@register("CenterCropPad")
def center_crop_pad(call: Call, x: Value, shape: Value) -> Tensor:
    data = call.tensor(x)
    where = call.axes(None, data.ndim) or list(range(data.ndim))
    for axis, size in zip(where, call.ints(shape, "shape"), strict=True):
        have = data.shape[axis]
        if size < have:
            data = data.narrow(axis, (have - size) // 2, size)
        elif size > have:
            before = (size - have) // 2
            pads = [0, 0] * (data.ndim - 1 - axis) + [before, size - have - before]
            data = F.pad(data, pads)
    return data
