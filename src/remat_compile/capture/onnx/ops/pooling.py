"""Pools."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..table import register
from .window import explicit_pads, pad_spatial


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
def max_pool(call: Call, x: Value) -> Any:
    data = call.tensor(x)
    if not data.is_floating_point():
        return _integer_max_pool(call, data)
    window = _Window(call, data)
    want = call.has(1)
    function: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[window.rank - 1]
    none = [0] * window.rank
    padded, added, pads, ceil = data, none + none, window.pads[: window.rank], window.ceil
    if not window.plain:
        padded, added, pads = pad_spatial(data, window.grown, -math.inf), window.grown, none
        ceil = False  # its ends have been grown
    size, step, dilations = window.kernel, window.strides, window.dilations
    result = function(padded, size, step, pads, dilations, ceil_mode=ceil, return_indices=want)
    return (result[0], _indices(call, result[1], data, added)) if want else result


def _integer_max_pool(call: Call, data: Tensor) -> Any:
    if data.dtype not in (torch.uint8, torch.int8):
        call.refuse(f"element type {data.dtype} is not supported")
    window = _Window(call, data)
    function: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[window.rank - 1]
    padded = pad_spatial(data.to(torch.float32), window.grown, -math.inf)
    if call.has(1):
        call.refuse("indices of an integer pool are not supported")
    return function(padded, window.kernel, window.strides, 0, window.dilations).to(data.dtype)


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
def average_pool(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
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
def lp_pool(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    window = _Window(call, data)
    p = call.integer("p", 2)
    powers = pad_spatial(data.abs().pow(p), window.grown, 0.0)
    return _window_sum(powers, window).pow(1.0 / p)


@register("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    spatial = tuple(range(2, data.ndim))
    if call.op == "GlobalAveragePool":
        return data.mean(spatial, keepdim=True)
    if call.op == "GlobalMaxPool":
        return data.amax(spatial, keepdim=True)
    p = call.integer("p", 2)
    return data.abs().pow(p).sum(spatial, keepdim=True).pow(1.0 / p)
