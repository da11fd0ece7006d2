"""Reductions, softmaxes, and losses with labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..call import Call, Known, Value
from ..table import register


def _product(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdim, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    return x.sum(axes, keepdim=keepdim, dtype=x.dtype)


def _extreme(function: Any) -> Callable[[Tensor, list[int], bool], Tensor]:
    def reduce(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
        if x.numel() == 0:
            edge = {torch.amax: -float("inf"), torch.amin: float("inf")}[function]
            if x.dtype == torch.bool:
                edge = edge > 0
            shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
            full = torch.full(shape, edge, dtype=x.dtype, device=x.device)
            return full if keepdim else full.squeeze(tuple(axes))
        result: Tensor = function(x, axes, keepdim=keepdim)
        return result

    return reduce


def _root(total: Tensor) -> Tensor:
    return total.sqrt() if total.is_floating_point() else total.double().sqrt().to(total.dtype)


def _mean(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keepdim)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return torch.div(_sum(x, axes, keepdim), count, rounding_mode="trunc")


def _log_sum_exp(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    if x.is_floating_point():
        return torch.logsumexp(x, axes, keepdim=keepdim)
    return torch.logsumexp(x.double(), axes, keepdim=keepdim).to(x.dtype)


_REDUCE: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _extreme(torch.amax),
    "ReduceMin": _extreme(torch.amin),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keep: _sum(x.abs(), axes, keep),
    "ReduceL2": lambda x, axes, keep: _root(_sum(x * x, axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: _sum(x, axes, keep).log().to(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
}


_PREPARE: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceL1": torch.abs,
    "ReduceL2": torch.abs,
    "ReduceSumSquare": torch.square,
    "ReduceLogSum": torch.log,
}
"""Effect of a reduction over no axes on each element."""


@register(*_REDUCE)
def reduce(call: Call, data: Tensor, axes: Value = None) -> Tensor:
    dims = call.axes(axes, data.ndim)
    if not dims and not call.flag("noop_with_empty_axes"):
        dims = list(range(data.ndim))
    if not dims:
        return _PREPARE[call.op](data) if call.op in _PREPARE else data
    return _REDUCE[call.op](data, dims, call.flag("keepdims", True))


@register("Softmax", "LogSoftmax")
def softmax(call: Call, data: Tensor) -> Tensor:
    """Along one axis; before opset 13 over all dimensions from `axis` (default 1) on."""
    function: Callable[..., Tensor] = torch.softmax
    if call.op == "LogSoftmax":
        function = torch.log_softmax
    if call.opset >= 13:
        return function(data, call.axis(-1, data.ndim))
    axis = call.axis(1, data.ndim)
    return function(data.flatten(axis), -1).reshape(data.shape) if axis else _whole(data, function)


def _whole(data: Tensor, function: Callable[..., Tensor]) -> Tensor:
    return function(data.reshape(-1), 0).reshape(data.shape)


@register("Hardmax")
def hardmax(call: Call, data: Tensor) -> Tensor:
    axis = call.axis(-1 if call.opset >= 13 else 1, data.ndim)
    flat = data if call.opset >= 13 else data.flatten(axis)
    dim = axis if call.opset >= 13 else -1
    index = flat.argmax(dim, keepdim=True)
    return torch.zeros_like(flat).scatter(dim, index, 1).reshape(data.shape)


_NO_LABEL = -100
"""PyTorch's own default for a label that is left out."""


@register("NegativeLogLikelihoodLoss")
def nll_loss(call: Call, logs: Tensor, target: Value, weight: Value = None) -> Tensor:
    """`F.nll_loss`; without `ignore_index` no label is left out."""
    reduction = call.one_of("reduction", "mean", ("none", "sum", "mean"))
    ignored = call.integer("ignore_index", _NO_LABEL)
    if isinstance(target, Known) and target.items is not None:
        classes = logs.shape[1 if logs.ndim > 1 else 0]
        labels = tree_leaves(target.items)
        if any(label != ignored and not 0 <= label < classes for label in labels):
            call.refuse(f"a label is outside the {classes} classes", "FB0606")
    index, shares = call.tensor(target).to(torch.int64), call.optional(weight)
    return F.nll_loss(logs, index, shares, ignore_index=ignored, reduction=reduction)


@register("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(call: Call, x: Tensor, target: Value, weight: Value = None) -> Any:
    logs = torch.log_softmax(x, 1)
    loss = nll_loss(call, logs, target, weight)
    return (loss, logs) if call.has(1) else loss
