"""Convolutions, pooling and padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._dtypes import _dtype, _wide
from ._registry import lowers, lowers_each


def _convolved(
    x: Array,
    weight: Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Array:
    """The convolution of x [N, C, ...] without bias; axes given once count for all."""
    rank = x.ndim - 2
    stride, padding, dilation, output_padding = (
        tuple(v) * rank if len(v) == 1 else tuple(v)
        for v in (stride, padding, dilation, output_padding)
    )
    letters = "DHW"[3 - rank :]
    layout = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    if not transposed:
        pads = [(p, p) for p in padding]
        return lax.conv_general_dilated(
            x, weight, stride, pads, None, dilation, layout, feature_group_count=groups
        )
    # The transpose: a convolution of the stretched input with the flipped kernel,
    # whose channels [C_in, C_out / groups] change places within each group.
    kernel = weight.shape[2:]
    flipped = jnp.flip(weight, tuple(range(2, weight.ndim)))
    grouped = flipped.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    turned = jnp.swapaxes(grouped, 1, 2).reshape(-1, weight.shape[0] // groups, *kernel)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
    ones = (1,) * rank
    return lax.conv_general_dilated(
        x, turned, ones, pads, stride, dilation, layout, feature_group_count=groups
    )


@lowers("aten.convolution.default")
def aten_convolution_default(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Array:
    out = _convolved(input, weight, stride, padding, dilation, transposed, output_padding, groups)
    return out if bias is None else out + bias.reshape((1, -1) + (1,) * (out.ndim - 2))


@lowers("aten.convolution_backward.default")
def aten_convolution_backward_default(
    grad_output: Array,
    input: Array,
    weight: Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Array | None, Array | None, Array | None]:
    how = (stride, padding, dilation, transposed, output_padding, groups)
    grad_input = grad_weight = grad_bias = None
    # A convolution is linear in each operand: its transpose is the gradient, and the
    # forward is not run again.
    if output_mask[0]:
        (grad_input,) = jax.linear_transpose(lambda x: _convolved(x, weight, *how), input)(
            grad_output
        )
    if output_mask[1]:
        (grad_weight,) = jax.linear_transpose(lambda w: _convolved(input, w, *how), weight)(
            grad_output
        )
    if output_mask[2]:
        grad_bias = jnp.sum(grad_output, (0, *range(2, grad_output.ndim)))
    return grad_input, grad_weight, grad_bias


def _each(value: tuple[int, ...], axes: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """A size for each axis, given once for all, for each, or (empty) by default."""
    given = tuple(value or default)
    return given * axes if len(given) == 1 else given


def _pooled_length(
    length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """The number of windows on an axis; with `ceil_mode`, the last may reach beyond it."""
    span = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= length + padding else count


def _largest(
    x: Array,
    axes: int,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> tuple[Array, Array]:
    """The maxima of windows over the last axes, and their places, counted through these axes."""
    kernel, pad, gap = (_each(v, axes) for v in (kernel_size, padding, dilation))
    step = _each(stride, axes, kernel)
    sizes, each = x.shape[-axes:], range(axes)
    counts = [_pooled_length(sizes[i], kernel[i], step[i], pad[i], gap[i], ceil_mode) for i in each]
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min
    high = [(counts[i] - 1) * step[i] + gap[i] * (kernel[i] - 1) + 1 for i in each]
    config = [(0, 0, 0)] * (x.ndim - axes)
    config += [(pad[i], max(high[i] - sizes[i] - pad[i], 0), 0) for i in each]
    padded = lax.pad(x, jnp.asarray(lowest, x.dtype), config)
    best = jnp.full((*x.shape[:-axes], *counts), lowest, x.dtype)
    index = jnp.full(best.shape, -1, _dtype(jnp.int64))
    # One place of the window at a time, so that the first of equal values wins and
    # nothing larger than the result is kept.
    for place in np.ndindex(*kernel):
        at = [place[i] * gap[i] for i in each]
        window = [slice(at[i], at[i] + (counts[i] - 1) * step[i] + 1, step[i]) for i in each]
        value = padded[(..., *window)]
        cells = np.ix_(*(np.arange(counts[i]) * step[i] + at[i] - pad[i] for i in each))
        inside, flat = np.asarray(True), np.asarray(0)
        for i in each:
            inside = inside & (cells[i] >= 0) & (cells[i] < sizes[i])
            flat = flat * sizes[i] + cells[i]
        better = inside & ((index < 0) | (value > best) | jnp.isnan(value))
        best = jnp.where(better, value, best)
        index = jnp.where(better, flat, index)
    return best, index


def _to_places(grad_output: Array, shape: tuple[int, ...], indices: Array, axes: int) -> Array:
    """The gradient of what was picked by `indices` through the last axes of a `shape`."""
    planes = np.prod(shape[:-axes], dtype=int).item()
    area = np.prod(shape[-axes:], dtype=int).item()
    zeros = jnp.zeros((planes, area), _wide(grad_output).dtype)
    rows = jnp.arange(planes)[:, None]
    grad_input = zeros.at[rows, indices.reshape(planes, -1)].add(
        _wide(grad_output).reshape(planes, -1)
    )
    return grad_input.reshape(shape).astype(grad_output.dtype)


def _unpooled(x: Array, indices: Array, output_size: tuple[int, ...]) -> Array:
    """The elements of each plane at their places in one of another size; the last one stays."""
    outer = x.shape[: -len(output_size)]
    flat, places = x.reshape(*outer, -1), indices.reshape(*outer, -1)
    rows = jnp.ix_(*map(jnp.arange, (*outer, 1)))[:-1]
    made = jnp.zeros((*outer, np.prod(output_size, dtype=int).item()), x.dtype)
    return made.at[(*rows, places)].set(flat).reshape(*outer, *output_size)


def _average(
    x: Array,
    axes: int,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    """Means over windows; each divides by the cells it covers, as PyTorch counts them."""
    kernel, pad = _each(kernel_size, axes), _each(padding, axes)
    step = _each(stride, axes, kernel)
    sizes = x.shape[-axes:]
    pads, area = [], np.asarray(1)
    for i in range(axes):
        count = _pooled_length(sizes[i], kernel[i], step[i], pad[i], 1, ceil_mode)
        first = np.arange(count) * step[i] - pad[i]
        last = np.minimum(first + kernel[i], sizes[i] + pad[i])
        covered = np.minimum(last, sizes[i]) - np.maximum(first, 0)
        area = np.multiply.outer(area, last - first if count_include_pad else covered)
        pads.append((pad[i], max((count - 1) * step[i] + kernel[i] - sizes[i] - pad[i], 0)))
    outer = x.ndim - axes
    sums: Array = lax.reduce_window(
        x,
        np.zeros((), x.dtype),
        lax.add,
        (1,) * outer + kernel,
        (1,) * outer + step,
        [(0, 0)] * outer + pads,
    )
    return sums / jnp.asarray(area if divisor_override is None else divisor_override, x.dtype)


def _adaptive_average(x: Array, output_size: tuple[int, ...]) -> Array:
    """Means over windows that divide the last axes into `output_size` parts."""
    for i, parts in enumerate(output_size):
        axis = x.ndim - len(output_size) + i
        length = x.shape[axis]
        place, cells = np.arange(parts), np.arange(length)
        first, last = place * length // parts, -(-(place + 1) * length // parts)
        window = (cells >= first[:, None]) & (cells < last[:, None])
        share = jnp.asarray(window / (last - first)[:, None], x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, share, ((axis,), (1,))), -1, axis)
    return x


def _adaptive_pulled(grad_output: Array, x: Array, axes: int) -> Array:
    size = grad_output.shape[-axes:]
    pull = jax.linear_transpose(lambda v: _adaptive_average(v, size), _wide(x))
    (grad_input,) = pull(_wide(grad_output))
    return jnp.asarray(grad_input, x.dtype)


def _nearest(
    lengths: tuple[int, ...], counts: tuple[int, ...], scales: tuple[float | None, ...]
) -> tuple[Array, ...]:
    """Indices of the last two axes: the source of each element, in single precision as ATen works
    it out."""
    axes = []
    for length, count, scale in zip(lengths, counts, scales, strict=True):
        step = np.float32(1 / scale) if scale else np.float32(length) / np.float32(count)
        source = np.floor(np.arange(count, dtype=np.float32) * step).astype(np.int64)
        axes.append(np.minimum(source, length - 1))
    return jnp.ix_(*axes)


@lowers("aten.upsample_nearest2d_backward.default")
def aten_upsample_nearest2d_backward_default(
    grad_output: Array,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    wide = _wide(grad_output)
    index = _nearest(input_size[-2:], output_size, (scales_h, scales_w))
    zeros = jnp.zeros(input_size, wide.dtype)
    return zeros.at[(..., *index)].add(wide).astype(grad_output.dtype)


def _weights(length: int, count: int, scale: float | None, align: bool, cubic: bool) -> Array:
    """The matrix (count x length) of linear or cubic interpolation along one axis, as ATen places
    its samples."""
    if align:
        source = np.arange(count) * ((length - 1) / (count - 1) if count > 1 else 0.0)
    else:
        source = (np.arange(count) + 0.5) * (1 / scale if scale else length / count) - 0.5
        source = source if cubic else np.maximum(source, 0)
    first = np.floor(source).astype(np.int64)
    t, made = source - first, np.zeros((count, length))
    near = [1 - t, t] if not cubic else [_cubic(t + 1), _cubic(t), _cubic(1 - t), _cubic(2 - t)]
    for i, weight in enumerate(near):
        cell = np.clip(first + i - (1 if cubic else 0), 0, length - 1)
        np.add.at(made, (np.arange(count), cell), weight)
    return jnp.asarray(made)


def _cubic(t: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -0.75."""
    a = -0.75
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer: np.ndarray = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, inner, outer)


def _interpolated(
    x: Array,
    lengths: tuple[int, ...],
    counts: tuple[int, ...],
    align: bool,
    scales: tuple[float | None, ...],
    cubic: bool,
    back: bool,
) -> Array:
    """The last axes interpolated from `lengths` to `counts`; `back` is the gradient of that."""
    made = _wide(x)
    for i, (length, count, scale) in enumerate(zip(lengths, counts, scales, strict=True)):
        axis = x.ndim - len(lengths) + i
        matrix = _weights(length, count, scale, align, cubic).astype(made.dtype)
        product = jnp.tensordot(made, matrix, ((axis,), (0 if back else 1,)))
        made = jnp.moveaxis(product, -1, axis)
    return made.astype(x.dtype)


def _padded(x: Array, padding: tuple[int, ...], mode: str) -> Array:
    """`x` padded on its last axes; `padding` names the last axis first."""
    pairs = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    padded = jnp.pad(x, [(max(low, 0), max(high, 0)) for low, high in pairs], mode=mode)
    # Less than nothing is cut off.
    ends = [
        (max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(padded.shape, pairs, strict=True)
    ]
    return padded[tuple(slice(first, last) for first, last in ends)]


def _unpadded(grad_output: Array, x: Array, padding: tuple[int, ...], mode: str) -> Array:
    """The gradient of `_padded`, which is linear: its transpose."""
    (grad_input,) = jax.linear_transpose(lambda v: _padded(v, padding, mode), x)(grad_output)
    return jnp.asarray(grad_input)


@lowers(
    "aten.reflection_pad1d_backward.default",
    "aten.reflection_pad2d_backward.default",
)
def aten_reflection_pad1d_backward_default(
    grad_output: Array, x: Array, padding: tuple[int, ...]
) -> Array:
    return _unpadded(grad_output, x, padding, "reflect")


@lowers(
    "aten.replication_pad1d_backward.default",
    "aten.replication_pad2d_backward.default",
)
def aten_replication_pad1d_backward_default(
    grad_output: Array, x: Array, padding: tuple[int, ...]
) -> Array:
    return _unpadded(grad_output, x, padding, "edge")


@lowers("aten.pixel_shuffle.default")
def aten_pixel_shuffle_default(x: Array, upscale_factor: int) -> Array:
    *outer, channels, height, width = x.shape
    r = upscale_factor
    parts = x.reshape(*outer, channels // r**2, r, r, height, width)
    mixed = jnp.moveaxis(parts, (-4, -3), (-3, -1))
    return mixed.reshape(*outer, channels // r**2, height * r, width * r)


@lowers("aten.pixel_unshuffle.default")
def aten_pixel_unshuffle_default(x: Array, downscale_factor: int) -> Array:
    *outer, channels, height, width = x.shape
    r = downscale_factor
    parts = x.reshape(*outer, channels, height // r, r, width // r, r)
    mixed = jnp.moveaxis(parts, (-3, -1), (-4, -3))
    return mixed.reshape(*outer, channels * r**2, height // r, width // r)


@lowers("aten.max_pool2d_with_indices.default")
def aten_max_pool2d_with_indices_default(
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    return _largest(x, 2, kernel_size, stride, padding, dilation, ceil_mode)


@lowers("aten.avg_pool2d.default")
def aten_avg_pool2d_default(
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    how = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _average(_wide(x), 2, *how).astype(x.dtype)


@lowers("aten.avg_pool2d_backward.default")
def aten_avg_pool2d_backward_default(
    grad_output: Array,
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    how = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    (grad_input,) = jax.linear_transpose(lambda v: _average(v, 2, *how), _wide(x))(
        _wide(grad_output)
    )
    return jnp.asarray(grad_input, x.dtype)


@lowers("aten.max_pool3d_with_indices.default")
def aten_max_pool3d_with_indices_default(
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0, 0, 0),
    dilation: tuple[int, ...] = (1, 1, 1),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    return _largest(x, 3, kernel_size, stride, padding, dilation, ceil_mode)


@lowers("aten.avg_pool3d.default")
def aten_avg_pool3d_default(
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    how = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _average(_wide(x), 3, *how).astype(x.dtype)


@lowers("aten.avg_pool3d_backward.default")
def aten_avg_pool3d_backward_default(
    grad_output: Array,
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    how = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    (grad_input,) = jax.linear_transpose(lambda v: _average(v, 3, *how), _wide(x))(
        _wide(grad_output)
    )
    return jnp.asarray(grad_input, x.dtype)


@lowers("aten.upsample_linear1d.default")
def aten_upsample_linear1d_default(
    x: Array,
    output_size: tuple[int, ...],
    align_corners: bool,
    scales: float | None = None,
) -> Array:
    return _interpolated(x, x.shape[-1:], output_size, align_corners, (scales,), False, False)


@lowers("aten.upsample_linear1d_backward.default")
def aten_upsample_linear1d_backward_default(
    grad_output: Array,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales: float | None = None,
) -> Array:
    lengths = tuple(input_size[2:])
    return _interpolated(grad_output, lengths, output_size, align_corners, (scales,), False, True)


@lowers("aten.upsample_bilinear2d.default")
def aten_upsample_bilinear2d_default(
    x: Array,
    output_size: tuple[int, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    return _interpolated(
        x, x.shape[-2:], output_size, align_corners, (scales_h, scales_w), False, False
    )


@lowers("aten.upsample_bilinear2d_backward.default")
def aten_upsample_bilinear2d_backward_default(
    grad_output: Array,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    lengths = tuple(input_size[2:])
    return _interpolated(
        grad_output, lengths, output_size, align_corners, (scales_h, scales_w), False, True
    )


@lowers("aten.upsample_bicubic2d.default")
def aten_upsample_bicubic2d_default(
    x: Array,
    output_size: tuple[int, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    return _interpolated(
        x, x.shape[-2:], output_size, align_corners, (scales_h, scales_w), True, False
    )


@lowers("aten.upsample_bicubic2d_backward.default")
def aten_upsample_bicubic2d_backward_default(
    grad_output: Array,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    lengths = tuple(input_size[2:])
    return _interpolated(
        grad_output, lengths, output_size, align_corners, (scales_h, scales_w), True, True
    )


@lowers("aten.upsample_trilinear3d.default")
def aten_upsample_trilinear3d_default(
    x: Array,
    output_size: tuple[int, ...],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    return _interpolated(
        x, x.shape[-3:], output_size, align_corners, (scales_d, scales_h, scales_w), False, False
    )


@lowers("aten.upsample_trilinear3d_backward.default")
def aten_upsample_trilinear3d_backward_default(
    grad_output: Array,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    lengths = tuple(input_size[2:])
    return _interpolated(
        grad_output,
        lengths,
        output_size,
        align_corners,
        (scales_d, scales_h, scales_w),
        False,
        True,
    )


lowers_each(
    {
        "aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool3d.default": (
            lambda x, output_size: _adaptive_average(_wide(x), output_size).astype(x.dtype)
        ),
        "aten._adaptive_avg_pool2d_backward.default": lambda grad_output, x: _adaptive_pulled(
            grad_output, x, 2
        ),
        "aten._adaptive_avg_pool3d_backward.default": lambda grad_output, x: _adaptive_pulled(
            grad_output, x, 3
        ),
        "aten.max_pool2d_with_indices_backward.default": (
            lambda grad_output, x, indices: _to_places(grad_output, x.shape, indices, 2)
        ),
        "aten.max_pool3d_with_indices_backward.default": (
            lambda grad_output, x, indices: _to_places(grad_output, x.shape, indices, 3)
        ),
        "aten.max_unpool2d.default aten.max_unpool3d.default": lambda x, indices, output_size: (
            _unpooled(x, indices, output_size)
        ),
        "aten.upsample_nearest2d.default": lambda x, output_size, scales_h=None, scales_w=None: x[
            ..., *_nearest(x.shape[-2:], output_size, (scales_h, scales_w))
        ],
        "aten.reflection_pad1d.default aten.reflection_pad2d.default": lambda x, padding: _padded(
            x, padding, "reflect"
        ),
        "aten.replication_pad1d.default aten.replication_pad2d.default": lambda x, padding: _padded(
            x, padding, "edge"
        ),
    }
)
