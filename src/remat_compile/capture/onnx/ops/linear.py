"""Matrix products, Fourier transforms, and quantisation.

A Fourier transform is a product with matrices of cosines and sines, in real arithmetic.

Integers carry no gradient. Quantising what depends on a parameter is refused, unless the file
asks for straight-through gradients (model metadata `remat_compile.straight_through`): then the
quantised value travels as a float with its integer value, and rounding counts as the identity.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, Call, Value
from ..file.limits import check_bytes
from ..table import TWO, register

register("MatMul", reads=TWO)(lambda _, a, b: torch.matmul(a, b))


@register("Gemm")
def gemm(call: Call, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """`alpha * A' B' + beta * C`; `F.linear` or `addmm` where PyTorch would run those."""
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    if call.flag("transA"):
        left = left.t()
    row = bias is not None and bias.ndim == 1 and bias.shape[0] != 1
    if call.flag("transB"):
        if alpha == beta == 1.0 and (bias is None or row):
            linear: Tensor = F.linear(left, right, bias)
            return linear
        right = right.t()
    if not left.is_floating_point():
        product = alpha_times(left @ right, alpha)
        return product if bias is None else product + alpha_times(bias, beta)
    if bias is None:
        product = torch.mm(left, right)
        return product if alpha == 1.0 else product * alpha
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha)


def alpha_times(x: Tensor, factor: float) -> Tensor:
    """Integer `Gemm`: the factor acts in real numbers and the result is cut back."""
    return x if factor == 1.0 else (x * factor).to(x.dtype)


register("Einsum", reads=())(
    lambda call, *values: torch.einsum(call.string("equation", ""), *map(call.tensor, values))
)


@register("DFT")
def dft(call: Call, data: Tensor, length: Value = None, axis: Value = None) -> Tensor:
    """The transform along one axis; the last dimension is real, or real and imaginary part."""
    if axis is not None:
        where = int(call.scalar(axis, "axis"))
    else:
        where = call.integer("axis", 1 if call.opset < 20 else -2)
    if not -data.ndim <= where < data.ndim or where % data.ndim == data.ndim - 1:
        call.refuse(f"axis {where} is out of range for rank {data.ndim}")
    where %= data.ndim
    inverse, onesided = call.flag("inverse"), call.flag("onesided")
    size = data.shape[where] if length is None else int(call.scalar(length, "dft_length"))
    if onesided and inverse:
        half = data.movedim(where, -2)
        size = 2 * (half.shape[-2] - 1) if length is None else size
        return _real_inverse(call, half, size).movedim(-2, where)
    moved = data.movedim(where, -2)
    real, imaginary = _transformed(call, moved, size, inverse=inverse)
    keep = size // 2 + 1 if onesided else size
    out = torch.stack([real[..., :keep], imaginary[..., :keep]], -1)
    return out.movedim(-2, where)


def _transformed(call: Call, data: Tensor, size: int, *, inverse: bool) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of the transform of (..., n, 1 or 2)."""
    cos, sin = _waves(call, size, data)
    used = min(size, data.shape[-2])
    cos, sin = cos[:used], sin[:used] if inverse else -sin[:used]
    real = data[..., :used, 0]
    first, second = real @ cos, real @ sin
    if data.shape[-1] == 2:
        other = data[..., :used, 1]
        first, second = first - other @ sin, second + other @ cos
    return (first / size, second / size) if inverse else (first, second)


def _real_inverse(call: Call, half: Tensor, size: int) -> Tensor:
    """The real signal of `size` samples with this half of a spectrum."""
    bins = min(half.shape[-2], size // 2 + 1)
    cos, sin = (wave[:bins] for wave in _waves(call, size, half))
    twice = torch.full((bins, 1), 2.0, dtype=half.dtype, device=half.device)
    twice[0] = 1.0
    if size % 2 == 0 and bins == size // 2 + 1:
        twice[-1] = 1.0
    real, imaginary = half[..., :bins, 0], half[..., :bins, 1]
    return ((real @ (twice * cos) - imaginary @ (twice * sin)) / size).unsqueeze(-1)


def _waves(call: Call, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    check_bytes(f'node "{call.name}" ({call.op})', 4 * 8 * size * size)
    # Multiples are taken modulo the size first: the angle keeps all its digits.
    steps = torch.arange(size, device=like.device)
    angle = (steps.unsqueeze(1) * steps % size).to(torch.float64) * (2 * math.pi / max(size, 1))
    return torch.cos(angle).to(like.dtype), torch.sin(angle).to(like.dtype)


@register("STFT")
def stft(
    call: Call, data: Tensor, step: Value, shape: Tensor | None = None, length: Value = None
) -> Tensor:
    """Transforms of the windowed frames of (batch, samples, 1 or 2)."""
    hop = int(call.scalar(step, "frame_step"))
    data = data.unsqueeze(-1) if data.ndim == 2 else data
    if length is not None:
        size = int(call.scalar(length, "frame_length"))
    elif shape is not None:
        size = shape.shape[0]
    else:
        call.refuse("neither window nor frame_length is given")
    frames = data.unfold(1, size, hop).transpose(-1, -2)
    if shape is not None:
        frames = frames * shape.reshape(-1, 1)
    real, imaginary = _transformed(call, frames, size, inverse=False)
    keep = size // 2 + 1 if call.flag("onesided", True) else size
    return torch.stack([real[..., :keep], imaginary[..., :keep]], -1)


@register("MelWeightMatrix")
def mel_weight_matrix(
    call: Call, bands: Value, length: Value, rate: Value, lowest: Value, highest: Value
) -> Tensor:
    """Triangles of height 1, equally wide on the mel scale: (bins of a spectrum, bands)."""
    count, size = (int(call.scalar(n, w)) for n, w in ((bands, "num_mel_bins"), (length, "length")))
    bins, sample_rate = size // 2 + 1, int(call.scalar(rate, "sample_rate"))
    hertz = [float(call.scalar(edge, "an edge")) for edge in (lowest, highest)]
    if count < 0 or size < 0 or sample_rate < 1 or not all(0 <= h < math.inf for h in hertz):
        call.refuse("sizes, sample rate and edges must be positive", "FB0606")
    check_bytes(f'node "{call.name}" ({call.op})', 4 * 8 * bins * (count + 2))
    low, high = (2595 * math.log1p(edge / 700) / math.log(10) for edge in hertz)
    mels = torch.arange(count + 2, dtype=torch.float64) * ((high - low) / (count + 2)) + low
    edges = 700 * torch.expm1(mels / 2595 * math.log(10))
    corner = torch.floor((size + 1) * edges / sample_rate)
    left, peak, right = corner[:-2], corner[1:-1], corner[2:]
    at = torch.arange(bins, dtype=torch.float64).unsqueeze(1)
    rising = (at - left) / (peak - left).clamp(min=1)
    falling = (right - at) / (right - peak).clamp(min=1)
    matrix = torch.where(at < peak, rising, torch.where(at > peak, falling, 1.0)).clamp(min=0)
    kind = DTYPES.get(call.integer("output_datatype", 1))
    if kind is None:
        call.refuse("this output_datatype is not supported")
    return matrix.to(kind)


_RANGES = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
}


@register("QuantizeLinear")
def quantize(call: Call, data: Tensor, scale: Tensor, point: Tensor | None = None) -> Tensor:
    kind = DTYPES.get(call.integer("output_dtype", 0), torch.uint8)
    if point is not None:
        kind = point.dtype
    if kind not in _RANGES:
        call.refuse(f"quantising to {kind} is not supported")
    if data.requires_grad and not call.straight_through:
        call.refuse(
            "the input depends on a parameter, and integers carry no gradient",
            hint='set the model metadata "remat_compile.straight_through" to "yes"',
        )
    step = _along(call, scale, data).to(data.dtype)
    low, high = _RANGES[kind]
    scaled = data / step
    shift = 0 if point is None else _along(call, point.to(torch.int32), data)
    if data.requires_grad:
        inside = torch.clamp(scaled + shift, low, high)
        return inside + (torch.clamp(torch.round(scaled) + shift, low, high) - inside).detach()
    return torch.clamp(torch.round(scaled) + shift, low, high).to(torch.int32).to(kind)


@register("DequantizeLinear")
def dequantize(call: Call, data: Tensor, step: Tensor, zero: Value = None) -> Tensor:
    kind = DTYPES.get(call.integer("output_dtype", 0), step.dtype)
    level = data if data.is_floating_point() else data.to(torch.int32)
    if zero is not None:
        level = level - _along(call, call.tensor(zero).to(torch.int32), data)
    return (level.to(step.dtype) * _along(call, step, data)).to(kind)


def _along(call: Call, values: Tensor, data: Tensor) -> Tensor:
    """Scales or zero points for every element: one, one along `axis`, or one per block."""
    if values.numel() == 1:
        return values.reshape(())
    axis = call.axis(1, data.ndim)
    if values.ndim == 1:
        return values.reshape([-1 if i == axis else 1 for i in range(data.ndim)])
    size = call.integer("block_size", 0)
    if not size:
        call.refuse("scales of several dimensions need block_size")
    return values.repeat_interleave(size, axis).narrow(axis, 0, data.shape[axis])
