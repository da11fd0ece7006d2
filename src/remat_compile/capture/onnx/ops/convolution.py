"""Convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Known, Value
from ..table import register
from .window import explicit_pads, pad_spatial


@register("Conv")
def conv(call: Call, x: Value, weight: Value, bias: Value = None) -> Tensor:
    data, kernel = call.tensor(x), call.tensor(weight)
    rank = data.ndim - 2
    strides = call.integers("strides", [1] * rank)
    dilations = call.integers("dilations", [1] * rank)
    pads = explicit_pads(call, data.shape[2:], kernel.shape[2:], strides, dilations)
    if pads[:rank] == pads[rank:]:
        padding = pads[:rank]
    else:
        data, padding = pad_spatial(data, pads, 0.0), [0] * rank
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[_rank(call, rank)]
    group = call.integer("group", 1)
    result: Tensor = function(data, kernel, _bias(call, bias), strides, padding, dilations, group)
    return result


def _bias(call: Call, bias: Value) -> Tensor | None:
    """The bias; None for a known one of zeros, which the exporter writes for "no bias"."""
    if isinstance(bias, Known) and isinstance(bias.items, list) and not any(bias.items):
        return None
    return call.optional(bias)


def _rank(call: Call, rank: int) -> int:
    if not 1 <= rank <= 3:
        call.refuse(f"{rank} spatial dimensions are not supported (1, 2 or 3 are)")
    return rank - 1


@register("ConvTranspose")
def conv_transpose(call: Call, x: Value, weight: Value, bias: Value = None) -> Tensor:
    data, kernel = call.tensor(x), call.tensor(weight)
    rank = data.ndim - 2
    strides = call.integers("strides", [1] * rank)
    dilations = call.integers("dilations", [1] * rank)
    extra = call.integers("output_padding", [0] * rank)
    sizes, kernels = data.shape[2:], kernel.shape[2:]
    full = [
        strides[i] * (sizes[i] - 1) + extra[i] + (kernels[i] - 1) * dilations[i] + 1
        for i in range(rank)
    ]
    pads = _transpose_pads(call, list(sizes), strides, full)
    function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[_rank(call, rank)]
    group, offset = call.integer("group", 1), _bias(call, bias)
    same = pads[:rank] == pads[rank:] and min(pads) >= 0
    if same and all(extra[i] < max(strides[i], dilations[i]) for i in range(rank)):
        plain: Tensor = function(
            data, kernel, offset, strides, pads[:rank], extra, group, dilations
        )
        return plain
    # PyTorch pads both sides alike; otherwise compute everything and cut.
    result: Tensor = function(data, kernel, None, strides, 0, 0, group, dilations)
    grow = [n for e in reversed(extra) for n in (0, e)]
    result = F.pad(result, grow) if any(extra) else result
    result = pad_spatial(result, [-pad for pad in pads], 0.0)
    return result if offset is None else result + offset.reshape([-1] + [1] * rank)


def _transpose_pads(call: Call, sizes: list[int], strides: list[int], full: list[int]) -> list[int]:
    """Begins and ends to cut off, from `output_shape`, `auto_pad` or `pads` (in this order)."""
    rank = len(sizes)
    auto = call.one_of("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    target = call.attributes.get("output_shape")
    if target is None and auto.startswith("SAME"):
        target = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if target is None:
        return [0] * 2 * rank if auto == "VALID" else call.integers("pads", [0] * 2 * rank)
    total = [full[i] - target[-rank + i] for i in range(rank)]
    small = [amount // 2 for amount in total]
    large = [amount - half for amount, half in zip(total, small, strict=True)]
    return small + large if auto == "SAME_UPPER" else large + small


@register("MaxUnpool")
def max_unpool(call: Call, x: Value, indices: Value, output_shape: Value = None) -> Tensor:
    """Put the maxima back; indices count in the flattened whole tensor."""
    data, index = call.tensor(x), call.tensor(indices)
    rank = data.ndim - 2
    kernel = call.integers("kernel_shape", ())
    strides = call.integers("strides", [1] * rank)
    pads = call.integers("pads", [0] * 2 * rank)
    inferred = [
        (data.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + rank]
        for i in range(rank)
    ]
    shape = [*data.shape[:2], *inferred]
    flat = torch.zeros(shape, dtype=data.dtype, device=data.device).reshape(-1)
    placed = flat.scatter(0, index.reshape(-1), data.reshape(-1)).reshape(shape)
    if output_shape is None:
        return placed
    target = call.ints(output_shape, "output_shape")
    ends = zip(shape[:1:-1], target[:1:-1], strict=True)
    return F.pad(placed, [n for have, want in ends for n in (0, want - have)])


@register("CausalConvWithState")
def causal_convolution(
    call: Call, x: Value, w: Value, b: Value = None, past: Value = None
) -> tuple[Tensor, Tensor]:
    """Each channel with its own kernel over current and earlier positions; and the new state."""
    data, kernel = call.tensor(x), call.tensor(w)
    reach = kernel.shape[-1] - 1
    before = data.new_zeros(*data.shape[:2], reach) if past is None else call.tensor(past)
    whole = torch.cat([before, data], -1)
    out = F.conv1d(whole, kernel, call.optional(b), groups=data.shape[1])
    if call.one_of("activation", "none", ("none", "silu", "swish")) != "none":
        out = F.silu(out)
    return out, whole.narrow(-1, whole.shape[-1] - reach, reach)
