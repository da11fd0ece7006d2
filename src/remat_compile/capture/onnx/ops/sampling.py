"""Operators that read between the elements of an image."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..table import ONE, register


def _corners(data: Tensor, image: Tensor, y: Tensor, x: Tensor) -> list[Tensor]:
    """The four elements around each place, each times its share in the bilinear mean.

    `data` is (image, channel, height, width); `image` (row, 1) says where a row reads; `y` and
    `x` are (row, place), inside the image. Results are (row, place, channel).
    """
    last_row, last_column = data.shape[2] - 1, data.shape[3] - 1
    top = y.detach().floor().to(torch.int64).clamp(0, last_row)
    left = x.detach().floor().to(torch.int64).clamp(0, last_column)
    down, right = y - top, x - left
    rows = ((top, 1 - down), ((top + 1).clamp(max=last_row), down))
    columns = ((left, 1 - right), ((left + 1).clamp(max=last_column), right))
    return [
        data[image, :, row, column] * (a * b).unsqueeze(-1)
        for row, a in rows
        for column, b in columns
    ]


@register("RoiAlign")
def roi_align(call: Call, data: Tensor, rois: Value, images: Value) -> Tensor:
    """Means (or maxima) over grids of samples in each bin of a region.

    Regions carry no gradient, as in torchvision. With `sampling_ratio` 0 the grid follows from
    their sizes, which must then be known.
    """
    highest = call.one_of("mode", "avg", ("avg", "max")) == "max"
    modes = ("half_pixel", "output_half_pixel")
    default = modes[0] if call.opset >= 16 else modes[1]
    half = call.one_of("coordinate_transformation_mode", default, modes) == "half_pixel"
    shape = (call.integer("output_height", 1), call.integer("output_width", 1))
    boxes = call.tensor(rois).detach() * call.number("spatial_scale", 1.0) - (0.5 if half else 0.0)
    start, size = boxes[:, :2].flip(-1), (boxes[:, 2:] - boxes[:, :2]).flip(-1)  # y, then x
    if not half:
        size = size.clamp(min=1.0)
    places, inside = [], []
    for axis, counts in enumerate(_grids(call, rois, boxes.shape[0], shape, half)):
        place, real = _samples(start[:, axis], size[:, axis], shape[axis], counts)
        far = data.shape[2 + axis]
        inside.append(((place >= -1) & (place <= far), real))
        places.append(place.clamp(0, far - 1))
    full = (boxes.shape[0], *shape, places[0].shape[-1], places[1].shape[-1])

    def both(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Both (region, bin, sample), as (region, place) of all pairs."""
        pair = (rows[:, :, None, :, None], columns[:, None, :, None, :])
        return pair[0].expand(full).flatten(1), pair[1].expand(full).flatten(1)

    call.check_within(images, 0, data.shape[0], "image")
    image = call.tensor(images).to(torch.int64).unsqueeze(-1)
    parts = _corners(data, image, *both(*places))
    seen = torch.logical_and(*both(inside[0][0], inside[1][0])).unsqueeze(-1)
    real = torch.logical_and(*both(inside[0][1], inside[1][1])).unsqueeze(-1)
    if highest:  # the standard takes the largest of the four weighted elements
        values = torch.where(seen, reduce(torch.maximum, parts), 0.0)
        values = torch.where(real, values, -math.inf).reshape(*full, -1).amax((3, 4))
        values = torch.where(values == -math.inf, 0.0, values)  # a region without samples
    else:
        values = torch.where(seen & real, reduce(torch.add, parts), 0.0)
        count = real.reshape(*full, 1).sum((3, 4)).clamp(min=1)
        values = values.reshape(*full, -1).sum((3, 4)) / count.to(values.dtype)
    return values.permute(0, 3, 1, 2)


def _grids(
    call: Call, rois: Value, regions: int, shape: tuple[int, int], half: bool
) -> tuple[list[int], list[int]]:
    """Samples of every region along y and along x, in one bin."""
    ratio = call.integer("sampling_ratio", 0)
    if ratio > 0:
        return [ratio] * regions, [ratio] * regions
    boxes = np.asarray(call.rows(rois, "a region (with sampling_ratio 0)"), np.float32)
    boxes = boxes.reshape(regions, 4) * np.float32(call.number("spatial_scale", 1.0))
    if half:
        boxes = boxes - np.float32(0.5)
    size = boxes[:, 2:] - boxes[:, :2]
    size = size if half else np.maximum(size, np.float32(1.0))
    counts = np.maximum(np.ceil(size / np.asarray(shape[::-1], np.float32)), 0)
    if not np.isfinite(counts).all():
        call.refuse("a region has no finite size", "FB0606")
    return counts[:, 1].astype(int).tolist(), counts[:, 0].astype(int).tolist()


def _samples(start: Tensor, size: Tensor, bins: int, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Places (region, bin, sample) along one axis, and which of them a region has."""
    most = max(counts, default=0)
    count = torch.tensor(counts, device=start.device).reshape(-1, 1, 1)
    step = torch.arange(most, device=start.device)
    inner = (step.to(start.dtype) + 0.5) / count.clamp(min=1).to(start.dtype)
    outer = torch.arange(bins, device=start.device).to(start.dtype).reshape(1, -1, 1)
    width = (size / bins).reshape(-1, 1, 1)
    places = start.reshape(-1, 1, 1) + width * (outer + inner)
    return places, (step < count).expand(places.shape)


@register("DeformConv")
def deform_conv(
    call: Call, data: Tensor, weight: Tensor, moved: Tensor, bias: Value = None, mask: Value = None
) -> Tensor:
    """A convolution whose taps are moved by `offset` and weighed by `mask`; zero outside."""
    if data.ndim != 4:
        call.refuse(f"{data.ndim - 2} spatial dimensions are not supported (2 are)")
    strides, dilations = call.integers("strides", [1, 1]), call.integers("dilations", [1, 1])
    pads, group = call.integers("pads", [0] * 4), call.integer("group", 1)
    shares = call.integer("offset_group", 1)
    batch, channels = data.shape[:2]
    kernel, out = list(weight.shape[2:]), list(moved.shape[2:])
    taps = math.prod(kernel)
    wanted = [
        (data.shape[2 + i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1)
        // strides[i]
        + 1
        for i in range(2)
    ]
    if out != wanted or moved.shape[1] != shares * taps * 2:
        have = [moved.shape[1], *out]
        call.refuse(f"offset is {have}, not {[shares * taps * 2, *wanted]}", "FB0606")
    shift = moved.reshape(batch * shares, *kernel, 2, *out)
    places = []
    for i in range(2):  # in an image with a rim of zeros, one element wide
        tap = torch.arange(kernel[i], device=data.device) * dilations[i]
        bin_ = torch.arange(out[i], device=data.device) * strides[i] - pads[i] + 1
        tap = tap.reshape([-1 if j == i else 1 for j in range(4)])
        place = shift[:, :, :, i] + tap + bin_.reshape([-1 if j == i + 2 else 1 for j in range(4)])
        places.append(place.clamp(0, data.shape[2 + i] + 1).flatten(1))
    rim = F.pad(data, [1, 1, 1, 1]).reshape(batch * shares, -1, *(n + 2 for n in data.shape[2:]))
    image = torch.arange(batch * shares, device=data.device).unsqueeze(-1)
    read = reduce(torch.add, _corners(rim, image, *places))
    if mask is not None:
        read = read * call.tensor(mask).reshape(batch * shares, -1, 1)
    columns = read.reshape(batch, shares, taps, math.prod(out), -1).permute(0, 1, 4, 2, 3)
    columns = columns.reshape(batch, group, channels // group * taps, -1)
    result = weight.reshape(group, -1, columns.shape[2]) @ columns
    result = result.reshape(batch, -1, *out)
    return result if bias is None else result + call.tensor(bias).reshape(-1, 1, 1)


@register("GridSample")
def grid_sample(call: Call, data: Tensor, grid: Tensor) -> Tensor:
    names = {
        "linear": "bilinear",
        "bilinear": "bilinear",
        "cubic": "bicubic",
        "bicubic": "bicubic",
        "nearest": "nearest",
    }
    mode = names[call.one_of("mode", "linear", tuple(names))]
    if mode == "bicubic" and data.ndim != 4:
        call.refuse("cubic sampling needs two spatial dimensions")
    padding = call.one_of("padding_mode", "zeros", ("zeros", "border", "reflection"))
    return F.grid_sample(data, grid, mode, padding, call.flag("align_corners"))


register("AffineGrid", reads=ONE)(
    lambda call, theta, size: F.affine_grid(
        theta, call.ints(size, "size"), call.flag("align_corners")
    )
)
