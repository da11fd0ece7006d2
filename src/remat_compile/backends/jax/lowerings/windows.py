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


def _pair(value: tuple[int, ...], default: tuple[int, ...] = ()) -> tuple[int, int]:
    """A size for each of two axes, given once for both, for each, or (empty) by default."""
    given = value or default
    return given[0], given[-1]


def _pooled_length(
    length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """The number of windows on an axis; with `ceil_mode`, the last may reach beyond it."""
    span = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= length + padding else count


@lowers("aten.max_pool2d_with_indices.default")
def aten_max_pool2d_with_indices_default(
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    kernel, pad, gap = _pair(kernel_size), _pair(padding), _pair(dilation)
    step = _pair(stride, kernel)
    sizes = x.shape[-2:]
    counts = [
        _pooled_length(sizes[i], kernel[i], step[i], pad[i], gap[i], ceil_mode) for i in (0, 1)
    ]
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min
    high = [(counts[i] - 1) * step[i] + gap[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
    config = [(0, 0, 0)] * (x.ndim - 2)
    config += [(pad[i], max(high[i] - sizes[i] - pad[i], 0), 0) for i in (0, 1)]
    padded = lax.pad(x, jnp.asarray(lowest, x.dtype), config)
    best = jnp.full((*x.shape[:-2], *counts), lowest, x.dtype)
    index = jnp.full(best.shape, -1, _dtype(jnp.int64))
    # One place of the window at a time, so that the first of equal values wins and
    # nothing larger than the result is kept.
    for place in range(kernel[0] * kernel[1]):
        at = [place // kernel[1] * gap[0], place % kernel[1] * gap[1]]
        value = padded[
            ...,
            at[0] : at[0] + (counts[0] - 1) * step[0] + 1 : step[0],
            at[1] : at[1] + (counts[1] - 1) * step[1] + 1 : step[1],
        ]
        row, column = (np.arange(counts[i]) * step[i] + at[i] - pad[i] for i in (0, 1))
        inside = np.logical_and.outer(
            (row >= 0) & (row < sizes[0]), (column >= 0) & (column < sizes[1])
        )
        better = inside & ((index < 0) | (value > best) | jnp.isnan(value))
        best = jnp.where(better, value, best)
        index = jnp.where(better, np.add.outer(row * sizes[1], column), index)
    return best, index


@lowers("aten.max_pool2d_with_indices_backward.default")
def aten_max_pool2d_with_indices_backward_default(
    grad_output: Array, x: Array, indices: Array
) -> Array:
    planes = np.prod(x.shape[:-2], dtype=int).item()
    area = x.shape[-2] * x.shape[-1]
    zeros = jnp.zeros((planes, area), _wide(grad_output).dtype)
    rows = jnp.arange(planes)[:, None]
    grad_input = zeros.at[rows, indices.reshape(planes, -1)].add(
        _wide(grad_output).reshape(planes, -1)
    )
    return grad_input.reshape(x.shape).astype(grad_output.dtype)


def _average(
    x: Array,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    """Means over windows; each divides by the cells it covers, as PyTorch counts them."""
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = _pair(stride, kernel)
    sizes = x.shape[-2:]
    pads, divisors = [], []
    for i in (0, 1):
        count = _pooled_length(sizes[i], kernel[i], step[i], pad[i], 1, ceil_mode)
        first = np.arange(count) * step[i] - pad[i]
        last = np.minimum(first + kernel[i], sizes[i] + pad[i])
        covered = np.minimum(last, sizes[i]) - np.maximum(first, 0)
        divisors.append(last - first if count_include_pad else covered)
        pads.append((pad[i], max((count - 1) * step[i] + kernel[i] - sizes[i] - pad[i], 0)))
    outer = x.ndim - 2
    sums: Array = lax.reduce_window(
        x,
        np.zeros((), x.dtype),
        lax.add,
        (1,) * outer + kernel,
        (1,) * outer + step,
        [(0, 0)] * outer + pads,
    )
    area = np.multiply.outer(*divisors) if divisor_override is None else divisor_override
    return sums / jnp.asarray(area, x.dtype)


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
    return _average(_wide(x), *how).astype(x.dtype)


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
    (grad_input,) = jax.linear_transpose(lambda v: _average(v, *how), _wide(x))(_wide(grad_output))
    return jnp.asarray(grad_input, x.dtype)


def _adaptive_average(x: Array, output_size: tuple[int, ...]) -> Array:
    """Means over windows that divide the last two axes into `output_size` parts."""
    for i, parts in enumerate(output_size):
        axis = x.ndim - 2 + i
        length = x.shape[axis]
        place, cells = np.arange(parts), np.arange(length)
        first, last = place * length // parts, -(-(place + 1) * length // parts)
        window = (cells >= first[:, None]) & (cells < last[:, None])
        share = jnp.asarray(window / (last - first)[:, None], x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, share, ((axis,), (1,))), -1, axis)
    return x


@lowers("aten._adaptive_avg_pool2d_backward.default")
def aten__adaptive_avg_pool2d_backward_default(grad_output: Array, x: Array) -> Array:
    size = grad_output.shape[-2:]
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


def _padded(x: Array, padding: tuple[int, ...], mode: str) -> Array:
    """`x` padded on its last axes; `padding` names the last axis first."""
    pairs = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)][::-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, mode=mode)


def _unpadded(grad_output: Array, x: Array, padding: tuple[int, ...], mode: str) -> Array:
    """The gradient of `_padded`, which is linear: its transpose."""
    (grad_input,) = jax.linear_transpose(lambda v: _padded(v, padding, mode), x)(grad_output)
    return jnp.asarray(grad_input)


@lowers("aten.reflection_pad1d_backward.default", "aten.reflection_pad2d_backward.default")
def aten_reflection_pad1d_backward_default(
    grad_output: Array, x: Array, padding: tuple[int, ...]
) -> Array:
    return _unpadded(grad_output, x, padding, "reflect")


@lowers("aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default")
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


lowers_each(
    {
        "aten._adaptive_avg_pool2d.default": lambda x, output_size: _adaptive_average(
            _wide(x), output_size
        ).astype(x.dtype),
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
