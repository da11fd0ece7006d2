"""Operators of `ai.onnx.ml` that choose or threshold features."""

from __future__ import annotations

import torch
from torch import Tensor

from ..call import Call, Value
from ..table import ML, register


@register("Binarizer", domain=ML)
def binarizer(call: Call, x: Value) -> Tensor:
    """1 above the threshold, else 0. Its gradient is zero everywhere."""
    data = call.tensor(x)
    return (data > call.number("threshold", 0.0)).to(data.dtype)


@register("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call, x: Value, indices: Value) -> Tensor:
    """Chosen elements of the last dimension; a vector counts as a matrix of one row."""
    data, index = call.tensor(x), call.tensor(indices)
    call.check_within(indices, 0, data.shape[-1], "feature")
    rows = data.unsqueeze(0) if data.ndim == 1 else data
    return rows.index_select(-1, index.reshape(-1).to(torch.int64))
