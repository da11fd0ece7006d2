"""Operators that move, cut, repeat or pad elements, and ONNX sequences, which are Python lists."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Known, Value
from ..table import ONE, register


@register("Identity")
def identity(call: Call, x: Value) -> Any:
    if isinstance(x, list):
        return x
    data = call.tensor(x)
    return data.detach() if call.origin.detached else data


@register("Reshape")
def reshape(call: Call, data: Tensor, shape: Value = None) -> Tensor:
    sizes = call.ints(shape, "shape") if shape is not None else call.integers("shape", ())
    if not call.flag("allowzero"):
        sizes = [data.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return data.reshape(sizes)


@register("Flatten")
def flatten(call: Call, data: Tensor) -> Tensor:
    axis = call.integer("axis", 1)
    axis = axis + data.ndim if axis < 0 else axis
    return data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))


@register("Squeeze")
def squeeze(call: Call, data: Tensor, axes: Value = None) -> Tensor:
    dims = call.axes(axes, data.ndim)
    if dims is None:
        return data.squeeze()
    for axis in dims:
        if data.shape[axis] != 1:
            call.refuse(f"axis {axis} has size {data.shape[axis]}, not 1", "FB0606")
    return data.squeeze(tuple(dims)) if dims else data


@register("Unsqueeze")
def unsqueeze(call: Call, data: Tensor, axes: Value = None) -> Tensor:
    attribute = call.attributes.get("axes")
    count = len(attribute) if attribute is not None else len(call.ints(axes, "axes"))
    for axis in sorted(call.axes(axes, data.ndim + count) or ()):
        data = data.unsqueeze(axis)
    return data


@register("Transpose")
def transpose(call: Call, data: Tensor) -> Tensor:
    order = call.integers("perm", range(data.ndim - 1, -1, -1))
    if order == list(range(data.ndim)):
        return data
    moved = [i for i, axis in enumerate(order) if i != axis]
    if len(moved) == 2:
        return data.transpose(*moved)
    return data.permute(order)


@register("Expand")
def expand(call: Call, data: Tensor, shape: Value) -> Tensor:
    wanted = call.ints(shape, "shape")
    rank = max(data.ndim, len(wanted))
    have = [1] * (rank - data.ndim) + list(data.shape)
    wanted = [1] * (rank - len(wanted)) + wanted
    target = [h if w == 1 else w for h, w in zip(have, wanted, strict=True)]
    return data if target == list(data.shape) else data.expand(target)


@register("Concat")
def concat(call: Call, *values: Value) -> Tensor:
    tensors = [call.tensor(value) for value in values]
    return torch.cat(tensors, dim=call.axis(0, tensors[0].ndim))


@register("Split")
def split(call: Call, data: Tensor, sizes: Value = None) -> tuple[Tensor, ...]:
    axis = call.axis(0, data.ndim)
    return torch.split(data, split_sizes(call, data.shape[axis], sizes), dim=axis)


def split_sizes(call: Call, length: int, sizes: Value) -> list[int]:
    """Sizes of the parts of `Split`, from the input, the attribute, or the number of outputs."""
    if sizes is not None:
        return call.ints(sizes, "split")
    if "split" in call.attributes:
        return call.integers("split", ())
    count = call.integer("num_outputs", len(call.outputs))
    part = -(-length // count)
    return [part] * (length // part) + ([length % part] if length % part else [])


@register("Slice")
def slice_(
    call: Call,
    data: Tensor,
    starts: Value = None,
    ends: Value = None,
    axes: Value = None,
    steps: Value = None,
) -> Tensor:
    first = call.ints(starts, "starts") if starts is not None else call.integers("starts", ())
    last = call.ints(ends, "ends") if ends is not None else call.integers("ends", ())
    where = call.axes(axes, data.ndim) or list(range(len(first)))
    stride = call.ints(steps, "steps") if steps is not None else [1] * len(first)
    for axis, start, end, step in zip(where, first, last, stride, strict=True):
        data = _slice_axis(data, axis, start, end, step)
    return data


def _slice_axis(data: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    low, high, stride = slice(start, end, step).indices(data.shape[axis])
    if stride > 0:
        if (low, high, stride) == (0, data.shape[axis], 1):
            return data
        return data[(slice(None),) * axis + (slice(low, max(low, high), stride),)]
    count = len(range(low, high, stride))
    if not count:
        return data.narrow(axis, 0, 0)
    lowest = low + (count - 1) * stride
    kept = data[(slice(None),) * axis + (slice(lowest, low + 1, -stride),)]
    return kept.flip(axis)


register("Tile", reads=ONE)(lambda call, x, repeats: x.repeat(call.ints(repeats, "repeats")))


@register("Pad")
def pad(
    call: Call, data: Tensor, pads: Value = None, fill: Value = None, axes: Value = None
) -> Tensor:
    amounts = call.ints(pads, "pads") if pads is not None else call.integers("pads", ())
    where = call.axes(axes, data.ndim) if axes is not None else list(range(data.ndim))
    assert where is not None
    mode = call.one_of("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    both = {axis: (amounts[i], amounts[i + len(where)]) for i, axis in enumerate(where)}
    if mode == "constant":
        value = call.scalar(fill, "constant_value", call.attributes.get("value", 0))
        flat = [n for axis in reversed(range(data.ndim)) for n in both.get(axis, (0, 0))]
        return F.pad(data, flat, value=value)
    for axis, (before, after) in both.items():
        if before or after:
            data = _pad_by_index(data, axis, before, after, mode)
    return data


def _pad_by_index(data: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    size = data.shape[axis]
    index = torch.arange(-before, size + after, device=data.device)
    if mode == "edge":
        index = index.clamp(0, size - 1)
    elif mode == "wrap":
        index = index.remainder(size)
    elif size == 1:
        index = torch.zeros_like(index)
    else:
        index = index.remainder(2 * (size - 1))
        index = torch.where(index >= size, 2 * (size - 1) - index, index)
    return data.index_select(axis, index)


@register("DepthToSpace")
def depth_to_space(call: Call, data: Tensor) -> Tensor:
    block = call.integer("blocksize", 1)
    if call.one_of("mode", "DCR", ("DCR", "CRD")) == "CRD":
        return F.pixel_shuffle(data, block)
    n, c, h, w = data.shape
    parts = data.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


@register("SpaceToDepth")
def space_to_depth(call: Call, data: Tensor) -> Tensor:
    block = call.integer("blocksize", 1)
    n, c, h, w = data.shape
    if call.one_of("mode", "DCR", ("DCR", "CRD")) == "CRD":
        return F.pixel_unshuffle(data, block)
    parts = data.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


@register("Trilu")
def trilu(call: Call, data: Tensor, k: Value = None) -> Tensor:
    diagonal = call.scalar(k, "k", 0)
    return torch.triu(data, diagonal) if call.flag("upper", True) else torch.tril(data, diagonal)


@register("Shape")
def shape(call: Call, x: Value) -> Tensor:
    # Only the shape is looked at, so that a known input needs no storage in the module.
    data = x.data if isinstance(x, Known) else call.tensor(x)
    sizes = list(data.shape)[call.integer("start", 0) : call.attributes.get("end")]
    return torch.tensor(sizes, dtype=torch.int64)


@register("Size")
def size(call: Call, x: Value) -> Tensor:
    data = x.data if isinstance(x, Known) else call.tensor(x)
    return torch.tensor(data.numel(), dtype=torch.int64)


def _items(call: Call, sequence: Value) -> list[Any]:
    if not isinstance(sequence, list):
        call.refuse("the input is not a sequence", "FB0606")
    return sequence


register("SequenceConstruct")(lambda call, *values: [[*map(call.tensor, values)]])


register("SequenceEmpty")(lambda call: [[]])


@register("SequenceInsert")
def sequence_insert(call: Call, sequence: Value, x: Tensor, position: Value = None) -> list[Any]:
    items = list(_items(call, sequence))
    items.insert(int(call.scalar(position, "position", len(items))), x)
    return [items]


@register("SequenceErase")
def sequence_erase(call: Call, sequence: Value, position: Value = None) -> list[Any]:
    items = list(_items(call, sequence))
    del items[int(call.scalar(position, "position", -1))]
    return [items]


register("SequenceAt")(
    lambda call, items, place: call.tensor(_items(call, items)[int(call.scalar(place, "position"))])
)


register("SequenceLength")(lambda call, items: torch.tensor(len(_items(call, items))))


@register("SplitToSequence")
def split_to_sequence(call: Call, data: Tensor, sizes: Value = None) -> list[Any]:
    axis = call.axis(0, data.ndim)
    if sizes is None:
        parts = torch.split(data, 1, dim=axis)
        if not call.flag("keepdims", True):
            parts = tuple(part.squeeze(axis) for part in parts)
        return [list(parts)]
    if isinstance(sizes, Known) and sizes.data.ndim == 0:
        return [list(torch.split(data, int(call.scalar(sizes)), dim=axis))]
    return [list(torch.split(data, split_sizes(call, data.shape[axis], sizes), dim=axis))]


@register("ConcatFromSequence")
def concat_from_sequence(call: Call, sequence: Value) -> Tensor:
    items = [call.tensor(item) for item in _items(call, sequence)]
    axis = call.integer("axis", 0)
    return torch.stack(items, axis) if call.flag("new_axis") else torch.cat(items, axis)
