"""Losses with labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..call import Call, Known, Value
from ..table import register

_NO_LABEL = -100
"""PyTorch's own default for a label that is left out."""


@register("NegativeLogLikelihoodLoss")
def nll_loss(call: Call, x: Value, target: Value, weight: Value = None) -> Tensor:
    return _nll(call, call.tensor(x), target, weight)


def _nll(call: Call, logs: Tensor, target: Value, weight: Value) -> Tensor:
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
def softmax_cross_entropy(call: Call, x: Value, target: Value, weight: Value = None) -> Any:
    logs = torch.log_softmax(call.tensor(x), 1)
    loss = _nll(call, logs, target, weight)
    return (loss, logs) if call.has(1) else loss
