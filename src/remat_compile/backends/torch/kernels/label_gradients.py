"""Gradients that eager writes at the place a label says, as a comparison with every class.

    grad[i, label[i]] = -g, 0 elsewhere   ->   grad[i, c] = -g where c == label[i], else 0

PyTorch's decomposition has a `scatter`, which a kernel must not do: out of range, it ends the
process. A comparison touches no other place, and what reads the gradient (that of `log_softmax`)
takes it into its loop, so that of two tensors with the classes in one dimension one is made. A
label that is out of range is an error of the forward, which gives `total_weight`, and runs by its
calls; here it gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten
_MEAN = 1
"""Number of `reduction="mean"` in ATen's `Reduction`."""


def _by_comparison(
    grad: Tensor,
    scores: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """`nll_loss_backward`, of scores (classes), (batch, classes) or (batch, classes, …)."""
    dim = 0 if scores.dim() < 2 else 1
    shape = [1] * scores.dim()
    shape[dim] = -1
    classes = torch.arange(scores.shape[dim], device=scores.device).view(shape)
    meant = labels.to(torch.int64).unsqueeze(dim)  # of one byte, no `ignore_index` below 0
    if reduction == _MEAN:
        grad = grad / total_weight
    if grad.dim() > 0:
        grad = grad.unsqueeze(dim)
    if weight is not None:
        grad = grad * weight.view(shape)
    return torch.where((classes == meant) & (meant != ignore_index), -grad, 0.0)


LABEL_GRADIENTS: Mapping[Any, Callable[..., Tensor]] = {
    _ATEN.nll_loss_backward.default: _by_comparison,
    _ATEN.nll_loss2d_backward.default: _by_comparison,
}
"""Decompositions, beside those of Inductor."""
