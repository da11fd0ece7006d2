"""Gathers, scatters, and orderings along an axis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import ML, Call, Known, Value
from ..table import register


def _wrapped(index: Tensor, size: int) -> Tensor:
    """Indices with negative ones counted from the end, as int64."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


@register("Gather")
def gather(call: Call, data: Tensor, indices: Value) -> Tensor:
    """`aten.embedding` for rows of a matrix, else plain indexing (negative indices count back)."""
    axis = call.axis(0, data.ndim)
    call.check_within(indices, -data.shape[axis], data.shape[axis], "index")
    if isinstance(indices, Known) and indices.data.ndim == 0:
        return data.select(axis, int(call.scalar(indices)))
    index = call.tensor(indices)
    if index.dtype not in (torch.int32, torch.int64):
        index = index.to(torch.int64)
    if 0 in call.trained and data.ndim == 2 and axis == 0:
        origin = call.origin
        return F.embedding(
            index,
            data,
            padding_idx=origin.padding_row,
            scale_grad_by_freq=origin.scaled_by_frequency,
        )
    return data[(slice(None),) * axis + (index,)]


@register("GatherElements")
def gather_elements(call: Call, data: Tensor, indices: Value) -> Tensor:
    index = call.tensor(indices)
    axis = call.axis(0, data.ndim)
    call.check_within(indices, -data.shape[axis], data.shape[axis], "index")
    return torch.gather(data, axis, _wrapped(index, data.shape[axis]))


@register("GatherND")
def gather_nd(call: Call, data: Tensor, indices: Value) -> Tensor:
    index = call.tensor(indices).to(torch.int64)
    batch = call.integer("batch_dims", 0)
    leading = [
        torch.arange(data.shape[i], device=data.device).reshape(
            [-1 if j == i else 1 for j in range(index.ndim - 1)]
        )
        for i in range(batch)
    ]
    return data[(*leading, *index.unbind(-1))]


@register("Scatter", "ScatterElements")
def scatter_elements(call: Call, data: Tensor, indices: Tensor, source: Tensor) -> Tensor:
    axis = call.axis(0, data.ndim)
    index = _wrapped(indices, data.shape[axis])
    how = call.one_of("reduction", "none", ("none", "add", "mul", "max", "min"))
    if how == "none":
        return torch.scatter(data, axis, index, source)
    if how == "add":
        return torch.scatter_add(data, axis, index, source)
    name = {"mul": "prod", "max": "amax", "min": "amin"}[how]
    return torch.scatter_reduce(data, axis, index, source, name)


@register("ScatterND")
def scatter_nd(call: Call, data: Tensor, indices: Tensor, source: Tensor) -> Tensor:
    index = indices.to(torch.int64).unbind(-1)
    how = call.one_of("reduction", "none", ("none", "add", "mul", "max", "min"))
    if how in ("none", "add"):
        return data.index_put(index, source, accumulate=how == "add")
    positions = torch.arange(data.numel(), device=data.device).reshape(data.shape)[index]
    name = {"mul": "prod", "max": "amax", "min": "amin"}[how]
    flat = data.reshape(-1).scatter_reduce(0, positions.reshape(-1), source.reshape(-1), name)
    return flat.reshape(data.shape)


@register("TensorScatter")
def tensor_scatter(call: Call, data: Tensor, new: Tensor, first: Tensor | None = None) -> Tensor:
    """Write `update` into `cache` along `axis`, per batch, from `starts` on."""
    axis = call.axis(-2, data.ndim)
    mode = call.one_of("mode", "linear", ("linear", "circular"))
    steps = torch.arange(new.shape[axis], device=data.device)
    if first is None:
        first = torch.zeros(data.shape[0], dtype=torch.int64, device=data.device)
    position = first.to(torch.int64).unsqueeze(1) + steps
    if mode == "circular":
        position = position.remainder(data.shape[axis])
    shape = [1] * data.ndim
    shape[0], shape[axis] = data.shape[0], new.shape[axis]
    return torch.scatter(data, axis, position.reshape(shape).expand(new.shape), new)


@register("TopK")
def top_k(call: Call, data: Tensor, k: Value = None) -> tuple[Tensor, ...]:
    count = call.integer("k", 0) if k is None else int(call.scalar(k, "k"))
    largest = call.flag("largest", True)
    axis = call.axis(-1, data.ndim)
    # A stable sort gives the lower index first among equals, which `torch.topk` does not.
    values, index = torch.sort(data, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), index.narrow(axis, 0, count)


@register("ArgMax", "ArgMin")
def arg_extreme(call: Call, data: Tensor) -> Tensor:
    axis = call.axis(0, data.ndim)
    last = call.flag("select_last_index")
    function = torch.argmax if call.op == "ArgMax" else torch.argmin
    if not last:
        return function(data, dim=axis, keepdim=call.flag("keepdims", True))
    from_end = function(data.flip(axis), dim=axis, keepdim=call.flag("keepdims", True))
    return data.shape[axis] - 1 - from_end


@register("CumSum", "CumProd")
def cumulative(call: Call, data: Tensor, axis: Value) -> Tensor:
    dim = int(call.scalar(axis, "axis"))
    reverse = call.flag("reverse")
    running = data.flip(dim) if reverse else data
    if call.flag("exclusive"):
        start = torch.zeros_like if call.op == "CumSum" else torch.ones_like
        first = start(running.narrow(dim, 0, 1))
        running = torch.cat([first, running.narrow(dim, 0, running.shape[dim] - 1)], dim)
    total = torch.cumsum if call.op == "CumSum" else torch.cumprod
    result = total(running, dim, dtype=data.dtype)
    return result.flip(dim) if reverse else result


@register("NonZero")
def non_zero(call: Call, x: Value) -> Tensor:
    if not isinstance(x, Known):
        call.refuse("the size of the result depends on the values of the inputs", "FB0613")
    return call.tensor(x).nonzero().t()


@register("Compress")
def compress(call: Call, data: Tensor, condition: Value) -> Tensor:
    keep = [i for i, kept in enumerate(call.ints(condition, "condition")) if kept]
    index = torch.tensor(keep, dtype=torch.int64, device=data.device)
    if "axis" not in call.attributes:
        return data.reshape(-1).index_select(0, index)
    return data.index_select(call.axis(0, data.ndim), index)


@register("OneHot")
def one_hot(call: Call, index: Tensor, depth: Value, values: Tensor) -> Tensor:
    count = int(call.scalar(depth, "depth"))
    off, on = values.unbind(0)
    axis = call.axis(-1, index.ndim + 1)
    wrapped = index.to(torch.int64)
    wrapped = torch.where(wrapped < 0, wrapped + count, wrapped).unsqueeze(axis)
    shape = [1] * (index.ndim + 1)
    shape[axis] = count
    positions = torch.arange(count, device=index.device).reshape(shape)
    return torch.where(positions == wrapped, on, off)


@register("ReverseSequence")
def reverse_sequence(call: Call, data: Tensor, length: Tensor) -> Tensor:
    batch, time = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    moved = data.movedim((batch, time), (0, 1))
    steps = torch.arange(moved.shape[1], device=data.device).unsqueeze(0)
    order = torch.where(steps < length.unsqueeze(1), length.unsqueeze(1) - 1 - steps, steps)
    index = order.reshape(*order.shape, *([1] * (moved.ndim - 2))).expand(moved.shape)
    return moved.gather(1, index).movedim((0, 1), (batch, time))


@register("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call, data: Tensor, indices: Value) -> Tensor:
    """Chosen elements of the last dimension; a vector counts as a matrix of one row."""
    index = call.tensor(indices)
    call.check_within(indices, 0, data.shape[-1], "feature")
    rows = data.unsqueeze(0) if data.ndim == 1 else data
    return rows.index_select(-1, index.reshape(-1).to(torch.int64))
