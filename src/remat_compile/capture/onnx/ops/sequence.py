"""ONNX sequences, held as Python lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..call import Call, Known, Value
from ..table import register
from .shape import split_sizes


def _items(call: Call, sequence: Value) -> list[Any]:
    if not isinstance(sequence, list):
        call.refuse("the input is not a sequence", "FB0606")
    return sequence


@register("SequenceConstruct")
def sequence_construct(call: Call, *values: Value) -> list[Any]:
    return [[call.tensor(value) for value in values]]


@register("SequenceEmpty")
def sequence_empty(call: Call) -> list[Any]:
    return [[]]


@register("SequenceInsert")
def sequence_insert(call: Call, sequence: Value, x: Value, position: Value = None) -> list[Any]:
    items = list(_items(call, sequence))
    items.insert(int(call.scalar(position, "position", len(items))), call.tensor(x))
    return [items]


@register("SequenceErase")
def sequence_erase(call: Call, sequence: Value, position: Value = None) -> list[Any]:
    items = list(_items(call, sequence))
    del items[int(call.scalar(position, "position", -1))]
    return [items]


@register("SequenceAt")
def sequence_at(call: Call, sequence: Value, position: Value) -> Tensor:
    return call.tensor(_items(call, sequence)[int(call.scalar(position, "position"))])


@register("SequenceLength")
def sequence_length(call: Call, sequence: Value) -> Tensor:
    return torch.tensor(len(_items(call, sequence)), dtype=torch.int64)


@register("SplitToSequence")
def split_to_sequence(call: Call, x: Value, sizes: Value = None) -> list[Any]:
    data = call.tensor(x)
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
