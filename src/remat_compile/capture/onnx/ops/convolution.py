"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Known, Value
from ..table import register


def explicit_pads(
    call: Call,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Begins then ends per spatial dimension, from `pads` or `auto_pad`."""
    rank = len(sizes)
    auto = call.one_of("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if auto == "NOTSET":
        return call.integers("pads", [0] * 2 * rank)
    if auto == "VALID":
        return [0] * 2 * rank
    begins, ends = [], []
    for i in range(rank):
        out = -(-sizes[i] // strides[i])
        reach = (kernel[i] - 1) * dilations[i] + 1
        total = max(0, (out - 1) * strides[i] + reach - sizes[i])
        small, large = total // 2, total - total // 2
        begins.append(small if auto == "SAME_UPPER" else large)
        ends.append(large if auto == "SAME_UPPER" else small)
    return begins + ends


def pad_spatial(data: Tensor, pads: Sequence[int], value: float) -> Tensor:
    """Pad (or cut, where negative) the last `len(pads) / 2` dimensions."""
    rank = len(pads) // 2
    flat = [n for i in reversed(range(rank)) for n in (pads[i], pads[i + rank])]
    return F.pad(data, flat, value=value) if any(flat) else data


@register("Conv")
def conv(call: Call, data: Tensor, kernel: Tensor, bias: Value = None) -> Tensor:
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
def conv_transpose(call: Call, data: Tensor, kernel: Tensor, bias: Value = None) -> Tensor:
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
def max_unpool(call: Call, data: Tensor, index: Tensor, output_shape: Value = None) -> Tensor:
    """Put the maxima back; indices count in the flattened whole tensor."""
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
    call: Call, data: Tensor, kernel: Tensor, b: Tensor | None = None, past: Value = None
) -> tuple[Tensor, Tensor]:
    """Each channel with its own kernel over current and earlier positions; and the new state."""
    reach = kernel.shape[-1] - 1
    before = data.new_zeros(*data.shape[:2], reach) if past is None else call.tensor(past)
    whole = torch.cat([before, data], -1)
    out = F.conv1d(whole, kernel, b, groups=data.shape[1])
    if call.one_of("activation", "none", ("none", "silu", "swish")) != "none":
        out = F.silu(out)
    return out, whole.narrow(-1, whole.shape[-1] - reach, reach)


@register("Col2Im")
def col2im(call: Call, data: Tensor, image: Value, block: Value) -> Tensor:
    sizes, kernel = call.ints(image, "image_shape"), call.ints(block, "block_shape")
    rank = len(sizes)
    pads = call.integers("pads", [0] * 2 * rank)
    dilations, strides = (
        call.integers("dilations", [1] * rank),
        call.integers("strides", [1] * rank),
    )
    if rank != 2 or pads[:rank] != pads[rank:]:
        return _fold(data, sizes, kernel, dilations, pads, strides)
    fold: Any = F.fold
    result: Tensor = fold(
        data, sizes, kernel, dilation=dilations, padding=pads[:rank], stride=strides
    )
    return result


def _fold(
    data: Tensor,
    sizes: list[int],
    kernel: list[int],
    dilations: list[int],
    pads: list[int],
    strides: list[int],
) -> Tensor:
    """`F.fold` in any number of dimensions: every element is added where it lies in the padded
    image, of which the middle is the result."""
    rank = len(sizes)
    padded = [sizes[i] + pads[i] + pads[i + rank] for i in range(rank)]
    place = torch.zeros([1] * 2 * rank, dtype=torch.int64, device=data.device)
    for i in range(rank):  # axes of `place`: those of the kernel, then those of the blocks
        blocks = (padded[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for axis, steps, stride in ((i, kernel[i], dilations[i]), (rank + i, blocks, strides[i])):
            shape = [-1 if j == axis else 1 for j in range(2 * rank)]
            along = torch.arange(steps, device=data.device) * (stride * math.prod(padded[i + 1 :]))
            place = place + along.reshape(shape)
    flat = data.reshape(data.shape[0], -1, place.numel())
    image = flat.new_zeros(*flat.shape[:2], math.prod(padded))
    image = image.index_add(2, place.reshape(-1), flat).reshape(*flat.shape[:2], *padded)
    for i in range(rank):
        image = image.narrow(2 + i, pads[i], sizes[i])
    return image


class _Window:
    """Geometry of a pool: kernel, strides, dilations, pads, and ends grown for `ceil_mode`."""

    def __init__(self, call: Call, data: Tensor):
        self.rank = rank = data.ndim - 2
        if not 1 <= rank <= 3:
            call.refuse(f"{rank} spatial dimensions are not supported (1, 2 or 3 are)")
        self.kernel = call.integers("kernel_shape", ())
        self.strides = call.integers("strides", [1] * rank)
        self.dilations = call.integers("dilations", [1] * rank)
        sizes = data.shape[2:]
        self.pads = explicit_pads(call, sizes, self.kernel, self.strides, self.dilations)
        self.ceil = call.flag("ceil_mode")
        self.grown = list(self.pads)
        for i in range(rank if self.ceil else 0):
            reach = (self.kernel[i] - 1) * self.dilations[i] + 1
            span = sizes[i] + self.pads[i] + self.pads[i + rank] - reach
            steps = -(-span // self.strides[i])
            if steps * self.strides[i] >= sizes[i] + self.pads[i]:
                steps -= 1  # a window may not start in the padding at the end
            self.grown[i + rank] += max(0, steps * self.strides[i] - span)

    @property
    def plain(self) -> bool:
        """Return whether PyTorch's own padding does: alike on both sides, at most half a kernel."""
        half = all(2 * self.pads[i] <= self.kernel[i] for i in range(self.rank))
        return half and self.pads[: self.rank] == self.pads[self.rank :]


@register("MaxPool")
def max_pool(call: Call, data: Tensor) -> Any:
    kind, want = data.dtype, call.has(1)
    if not data.is_floating_point():
        if kind not in (torch.uint8, torch.int8):
            call.refuse(f"element type {kind} is not supported")
        if want:
            call.refuse("indices of an integer pool are not supported")
        data = data.to(torch.float32)
    window = _Window(call, data)
    function: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[window.rank - 1]
    none = [0] * window.rank
    padded, added, pads, ceil = data, none + none, window.pads[: window.rank], window.ceil
    if not window.plain:
        padded, added, pads = pad_spatial(data, window.grown, -math.inf), window.grown, none
        ceil = False  # its ends have been grown
    size, step, dilations = window.kernel, window.strides, window.dilations
    result = function(padded, size, step, pads, dilations, ceil_mode=ceil, return_indices=want)
    return (result[0], _indices(call, result[1], data, added)) if want else result.to(kind)


def _indices(call: Call, index: Tensor, data: Tensor, pads: list[int]) -> Tensor:
    """PyTorch counts inside one (padded) channel; ONNX in the whole tensor."""
    sizes = list(data.shape[2:])
    rank = len(sizes)
    padded = [sizes[i] + pads[i] + pads[i + rank] for i in range(rank)]
    places: list[Tensor] = []
    rest = index
    for i in reversed(range(rank)):
        places.insert(0, rest.remainder(padded[i]) - pads[i])
        rest = rest.div(padded[i], rounding_mode="floor")
    flat = torch.zeros_like(index)
    order = range(rank) if not call.flag("storage_order") else reversed(range(rank))
    for i in order:
        flat = flat * sizes[i] + places[i]
    planes = torch.arange(data.shape[0] * data.shape[1], device=data.device)
    shape = [data.shape[0], data.shape[1]] + [1] * rank
    return flat + planes.reshape(shape) * math.prod(sizes)


@register("AveragePool")
def average_pool(call: Call, data: Tensor) -> Tensor:
    window = _Window(call, data)
    inside = call.flag("count_include_pad")
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[window.rank - 1]
    dilated = any(step != 1 for step in window.dilations)
    if window.plain and not dilated:
        result: Tensor = function(
            data,
            window.kernel,
            window.strides,
            window.pads[: window.rank],
            window.ceil,
            count_include_pad=inside,
        )
        return result
    total = _window_sum(pad_spatial(data, window.grown, 0.0), window)
    ones = torch.ones_like(data[:1, :1])
    if inside:
        grow = [g - p for g, p in zip(window.grown, window.pads, strict=True)]
        counted = pad_spatial(pad_spatial(ones, window.pads, 1.0), grow, 0.0)
    else:
        counted = pad_spatial(ones, window.grown, 0.0)
    return total / _window_sum(counted, window)


def _window_sum(padded: Tensor, window: _Window) -> Tensor:
    channels = padded.shape[1]
    kernel = padded.new_ones([channels, 1, *window.kernel])
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[window.rank - 1]
    result: Tensor = function(padded, kernel, None, window.strides, 0, window.dilations, channels)
    return result


@register("LpPool")
def lp_pool(call: Call, data: Tensor) -> Tensor:
    window = _Window(call, data)
    p = call.integer("p", 2)
    powers = pad_spatial(data.abs().pow(p), window.grown, 0.0)
    return _window_sum(powers, window).pow(1.0 / p)


@register("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call, data: Tensor) -> Tensor:
    spatial = tuple(range(2, data.ndim))
    if call.op == "GlobalAveragePool":
        return data.mean(spatial, keepdim=True)
    if call.op == "GlobalMaxPool":
        return data.amax(spatial, keepdim=True)
    p = call.integer("p", 2)
    return data.abs().pow(p).sum(spatial, keepdim=True).pow(1.0 / p)
