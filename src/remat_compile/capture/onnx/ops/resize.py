"""Interpolation on a regular grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..file.limits import check_bytes
from ..table import register

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)


_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class _Axis:
    """The resizing of one axis; `roi` is the part of the input that is shown."""

    axis: int
    size: int
    out: int
    scale: float
    roi: tuple[float, float]


@register("Upsample")
def upsample(call: Call, data: Tensor, scales: Value = None) -> Tensor:
    """The predecessor of `Resize`: asymmetric coordinates; floor where it enlarges, ceil where
    it shrinks (as ONNX Runtime, and the tests of ONNX 1.5, read opset 10)."""
    mode = call.one_of("mode", "nearest", ("nearest", "linear"))
    given = call.attributes.get("scales")
    factors = list(given) if given is not None else call.floats(scales, "scales")
    plan = [
        _Axis(i, n, math.floor(n * f), f, (0.0, 1.0))
        for i, (n, f) in enumerate(zip(data.shape, factors, strict=True))
    ]
    for part in plan:
        data = _apply(call, data, [part], mode, "asymmetric", "ceil" if part.scale < 1 else "floor")
    return data


@register("Resize")
def resize(
    call: Call, data: Tensor, roi: Value = None, scales: Value = None, sizes: Value = None
) -> Tensor:
    if call.opset < 11:  # Resize-10: (X, scales), asymmetric, floor
        old: Tensor = upsample(call, data, roi)
        return old
    mode = call.one_of("mode", "nearest", ("nearest", "linear", "cubic"))
    where = call.one_of("coordinate_transformation_mode", "half_pixel", _COORDINATES)
    rounding = call.one_of("nearest_mode", "round_prefer_floor", _NEAREST)
    plan = _plan(call, data, roi if where == "tf_crop_and_resize" else None, scales, sizes)
    fast = _by_torch(call, data, plan, mode, where, rounding, sizes is not None)
    return _apply(call, data, plan, mode, where, rounding) if fast is None else fast


def _empty(value: Value) -> bool:
    return value is None or (not isinstance(value, list | Tensor) and value.data.numel() == 0)


def _plan(call: Call, data: Tensor, roi: Value, scales: Value, sizes: Value) -> list[_Axis]:
    axes = call.axes(None, data.ndim) or list(range(data.ndim))
    have = [int(data.shape[axis]) for axis in axes]
    if not _empty(sizes):
        out = call.ints(sizes, "sizes")
        factors = [o / n for o, n in zip(out, have, strict=True)]
        policy = call.one_of(
            "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
        )
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            out = [int(factor * n + 0.5) for n in have]
    else:
        factors = call.floats(scales, "scales")
        out = [math.floor(n * f) for n, f in zip(have, factors, strict=True)]
    box = [0.0] * len(axes) + [1.0] * len(axes)
    if not _empty(roi):
        box = call.floats(roi, "roi")
    return [
        _Axis(axis, have[i], out[i], factors[i], (box[i], box[i + len(axes)]))
        for i, axis in enumerate(axes)
    ]


def _by_torch(
    call: Call,
    data: Tensor,
    plan: list[_Axis],
    mode: str,
    where: str,
    rounding: str,
    by_size: bool,
) -> Tensor | None:
    """`F.interpolate` where it computes the same (what `torch.onnx.export` writes)."""
    spatial = data.ndim - 2
    parts = {part.axis: part for part in plan}
    if not 1 <= spatial <= 3 or call.flag("antialias") or call.flag("exclude_outside"):
        return None
    fixed = [parts[i] for i in (0, 1) if i in parts]
    if any(part.size != part.out for part in fixed) or any(
        i not in parts for i in range(2, data.ndim)
    ):
        return None
    moved = [parts[i] for i in range(2, data.ndim)]
    name = {
        "nearest": ("nearest",) * 3,
        "linear": ("linear", "bilinear", "trilinear"),
        "cubic": ("", "bicubic", ""),
    }[mode][spatial - 1]
    if not name or not data.is_floating_point():
        return None
    if mode == "cubic" and call.number("cubic_coeff_a", -0.75) != -0.75:
        return None
    half = where == "half_pixel" or (
        where == "pytorch_half_pixel" and all(part.out > 1 for part in moved)
    )
    corners = where == "align_corners" and all(part.scale * part.size == part.out for part in moved)
    exact = by_size or all(part.scale * part.size == part.out for part in moved)
    sizes = [part.out for part in moved]
    if mode == "nearest":
        same = where == "asymmetric" and rounding == "floor" and exact
        return F.interpolate(data, sizes) if same else None
    if not exact or not (half or corners):
        return None
    return F.interpolate(data, sizes, mode=name, align_corners=corners)


def _apply(
    call: Call, data: Tensor, plan: list[_Axis], mode: str, where: str, rounding: str
) -> Tensor:
    """One axis after the other: a choice of indices, or a matrix product."""
    out = data
    for part in plan:
        if part.size == part.out and part.scale == 1.0 and part.roi == (0.0, 1.0):
            continue
        cells = part.out if mode == "nearest" else part.out * part.size
        check_bytes(f'node "{call.name}" ({call.op})', 64 * cells)  # a Python number and its list
        places = [_place(part, y, where) for y in range(part.out)]
        if mode == "nearest":
            index = [min(max(_round(x, rounding), 0), part.size - 1) for x in places]
            out = out.index_select(part.axis, torch.tensor(index, device=data.device))
        else:
            rows = [_weights(call, part, x, mode) for x in places]
            kind = data.dtype if data.is_floating_point() else torch.float32
            matrix = torch.tensor(rows, dtype=kind, device=data.device)
            out = (out.to(kind).movedim(part.axis, -1) @ matrix.t()).movedim(-1, part.axis)
        if where == "tf_crop_and_resize":
            outside = [not 0 <= x <= part.size - 1 for x in places]
            shape = [-1 if i == part.axis else 1 for i in range(data.ndim)]
            blank = torch.tensor(outside, device=data.device).reshape(shape)
            out = torch.where(blank, call.number("extrapolation_value", 0.0), out)
    return out if out.dtype == data.dtype else out.round().to(data.dtype)


def _place(part: _Axis, y: int, where: str) -> float:
    """Where output element `y` lies in the input (ONNX `coordinate_transformation_mode`)."""
    length = part.scale * part.size
    match where:
        case "align_corners":
            return 0.0 if length == 1 else y * (part.size - 1) / (length - 1)
        case "asymmetric":
            return y / part.scale
        case "tf_crop_and_resize":
            first, last = part.roi
            if length == 1:
                return 0.5 * (first + last) * (part.size - 1)
            return first * (part.size - 1) + y * (last - first) * (part.size - 1) / (length - 1)
        case "tf_half_pixel_for_nn":
            return (y + 0.5) / part.scale
        case "pytorch_half_pixel" if length == 1:
            return -0.5
        case "half_pixel_symmetric":
            shift = part.size / 2 * (1 - part.out / length)
            return shift + (y + 0.5) / part.scale - 0.5
        case _:
            return (y + 0.5) / part.scale - 0.5


def _round(x: float, rounding: str) -> int:
    match rounding:
        case "floor":
            return math.floor(x)
        case "ceil":
            return math.ceil(x)
        case "round_prefer_floor":
            return math.ceil(x - 0.5)
        case _:
            return math.floor(x + 0.5)


def _weights(call: Call, part: _Axis, x: float, mode: str) -> list[float]:
    """The share of each input element in the output element at `x`."""
    reach = 1 if mode == "linear" else 2
    stretch = min(part.scale, 1.0) if call.flag("antialias") else 1.0
    a = call.number("cubic_coeff_a", -0.75)
    low, high = math.floor(x - reach / stretch), math.ceil(x + reach / stretch)
    row = [0.0] * part.size
    total = 0.0
    for i in range(low, high + 1):
        weight = _kernel((i - x) * stretch, mode, a)
        outside = not 0 <= i < part.size
        if outside and call.flag("exclude_outside"):
            continue
        total += weight
        row[min(max(i, 0), part.size - 1)] += weight
    return [weight / total for weight in row] if total else row


def _kernel(distance: float, mode: str, a: float) -> float:
    d = abs(distance)
    if mode == "linear":
        return max(0.0, 1.0 - d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0
