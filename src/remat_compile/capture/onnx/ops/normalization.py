"""Normalisations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, Call
from ..table import ONE, TWO, register


@register("BatchNormalization")
def batch_norm(
    call: Call, data: Tensor, weight: Tensor, offset: Tensor, old_mean: Tensor, old_var: Tensor
) -> Any:
    """Fixed statistics; with `training_mode`, or `train_bn`, batch statistics and updated ones.

    ONNX `momentum` weighs the old statistics, PyTorch's the new ones. With `training_mode`
    the new statistics are outputs as well, and their variance is that of the population.
    """
    eps = call.number("epsilon", 1e-5)
    momentum = round(1 - call.number("momentum", 0.9), 15)  # 0.1, not 0.09999999999999998
    if not call.flag("spatial", True):
        call.refuse("spatial=0 is not supported")
    if not all(one.is_floating_point() for one in (data, weight, offset, old_mean, old_var)):
        call.refuse("its inputs must be floating-point", "FB0606")
    if any(list(one.shape) != [data.shape[1]] for one in (weight, offset, old_mean, old_var)):
        call.refuse(f"scale, bias, mean and variance must be [{data.shape[1]}]", "FB0606")
    if call.flag("training_mode") and not call.train_bn:
        axes, seen = [0, *range(2, data.ndim)], data.detach()
        now = seen.mean(axes), seen.var(axes, correction=0)
        running = []
        for place, (old, new) in enumerate(zip((old_mean, old_var), now, strict=True), 3):
            running.append(old * (1 - momentum) + new * momentum)
            if place in call.statistics:
                old.copy_(running[-1])
        return (F.batch_norm(data, None, None, weight, offset, True, 0.0, eps), *running)
    out = F.batch_norm(data, old_mean, old_var, weight, offset, call.train_bn, momentum, eps)
    return (out, old_mean.clone(), old_var.clone()) if call.has(1) or call.has(2) else out


@register("LayerNormalization")
def layer_norm(call: Call, data: Tensor, weight: Tensor, offset: Tensor | None = None) -> Any:
    axis = call.axis(-1, data.ndim)
    eps = call.number("epsilon", 1e-5)
    shape = list(data.shape[axis:])
    wanted = call.has(1) or call.has(2)
    matching = list(weight.shape) == shape and (offset is None or list(offset.shape) == shape)
    if matching:
        if not wanted:
            return F.layer_norm(data, shape, weight, offset, eps)
        return torch.native_layer_norm(data, shape, weight, offset, eps)
    out, mean, deviation = torch.native_layer_norm(data, shape, None, None, eps)
    out = out * weight if offset is None else out * weight + offset
    return (out, mean, deviation) if wanted else out


register("InstanceNormalization", reads=(*ONE, *TWO))(
    lambda call, x, weight, bias: F.instance_norm(
        x, weight=weight, bias=bias, eps=call.number("epsilon", 1e-5)
    )
)


@register("GroupNormalization")
def group_norm(call: Call, data: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """Scale and bias per channel from opset 21 on, per group before."""
    groups, channels = call.integer("num_groups", 1), data.shape[1]
    if call.opset < 21 and weight.shape[0] == groups != channels:
        weight = weight.repeat_interleave(channels // groups)
        offset = offset.repeat_interleave(channels // groups)
    return F.group_norm(data, groups, weight, offset, call.number("epsilon", 1e-5))


@register("RMSNormalization")
def rms_norm(call: Call, data: Tensor, weight: Tensor) -> Tensor:
    axis = call.axis(-1, data.ndim)
    eps = call.number("epsilon", 1e-5)
    stash = DTYPES[call.integer("stash_type", 1)]
    shape = list(data.shape[axis:])
    if list(weight.shape) == shape and data.dtype == weight.dtype and data.dtype.itemsize >= 4:
        return F.rms_norm(data, shape, weight, eps)
    wide = data.to(stash) if data.dtype.itemsize < stash.itemsize else data
    scaled = F.rms_norm(wide, shape, None, eps)
    return scaled.to(weight.dtype) * weight


@register("LpNormalization")
def lp_normalization(call: Call, data: Tensor) -> Tensor:
    axis, p = call.axis(-1, data.ndim), call.integer("p", 2)
    norm = data.abs().sum(axis, keepdim=True) if p == 1 else data.norm(p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(data), data / torch.where(norm == 0, 1, norm))


@register("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, data: Tensor) -> Tensor:
    axes = call.integers("axes", [0, 2, 3])
    mean = data.mean(axes, keepdim=True)
    deviation = (data.pow(2).mean(axes, keepdim=True) - mean.pow(2)).sqrt()
    return (data - mean) / (deviation + 1e-9)


@register("LRN")
def local_response_norm(call: Call, data: Tensor) -> Tensor:
    """ONNX and PyTorch differ for an even size: ONNX looks one channel further ahead."""
    size, alpha = call.integer("size", 1), call.number("alpha", 1e-4)
    beta, bias = call.number("beta", 0.75), call.number("bias", 1.0)
    if size % 2:
        return F.local_response_norm(data, size, alpha, beta, bias)
    pads = [0, 0] * (data.ndim - 2) + [(size - 1) // 2, size // 2]
    squares = F.pad(data * data, pads).unfold(1, size, 1).sum(-1)
    return data / (bias + alpha / size * squares).pow(beta)
