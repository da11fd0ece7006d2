"""Losses with labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..table import register

_NO_LABEL = -100
"""PyTorch's own default for a label that is left out."""


@register("NegativeLogLikelihoodLoss")
def nll_loss(call: Call, x: Value, target: Value, weight: Value = None) -> Tensor:
    reduction = call.one_of("reduction", "mean", ("none", "sum", "mean"))
    return _nll(
        call.tensor(x),
        call.tensor(target),
        call.optional(weight),
        reduction,
        call.attributes.get("ignore_index"),
    )


def _nll(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: str, ignore: int | None
) -> Tensor:
    """`F.nll_loss`; without `ignore_index` no label is left out."""
    labels = target.to(torch.int64)
    return F.nll_loss(
        x, labels, weight, ignore_index=_NO_LABEL if ignore is None else ignore, reduction=reduction
    )


@register("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(call: Call, x: Value, target: Value, weight: Value = None) -> Any:
    reduction = call.one_of("reduction", "mean", ("none", "sum", "mean"))
    scores, labels = call.tensor(x), call.tensor(target)
    logs = torch.log_softmax(scores, 1)
    ignore = call.attributes.get("ignore_index")
    loss = _nll(logs, labels, call.optional(weight), reduction, ignore)
    return (loss, logs) if call.has(1) else loss
