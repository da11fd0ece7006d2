"""Normalization over channels, groups and trailing axes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._dtypes import _wide
from ._registry import lowers


def _statistics_dtype(x: Array, weight: Array | None) -> np.dtype:
    """PyTorch keeps mean and deviation in the input's dtype, or in the wider weight's."""
    return x.dtype if weight is None or weight.dtype == x.dtype else np.dtype(np.float32)


def _mean_and_rstd(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    """Mean and reciprocal deviation over `axes`, which stay with length 1."""
    mean = jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axes, keepdims=True)
    return mean, lax.rsqrt(variance + eps)


@lowers("aten.native_layer_norm.default")
def aten_native_layer_norm_default(
    input: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, Array, Array]:
    x = _wide(input)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    mean, rstd = _mean_and_rstd(x, axes, eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    kept = _statistics_dtype(input, weight)
    return out.astype(input.dtype), mean.astype(kept), rstd.astype(kept)


@lowers("aten.native_layer_norm_backward.default")
def aten_native_layer_norm_backward_default(
    grad_out: Array,
    input: Array,
    normalized_shape: tuple[int, ...],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: tuple[bool, ...],
) -> tuple[Array | None, Array | None, Array | None]:
    g, x, rstd = _wide(grad_out), _wide(input), _wide(rstd)
    outer = x.ndim - len(normalized_shape)
    inner, rows = tuple(range(outer, x.ndim)), tuple(range(outer))
    normed = (x - _wide(mean)) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * _wide(weight)
        along = jnp.mean(scaled * normed, inner, keepdims=True)
        grad_input = rstd * (scaled - jnp.mean(scaled, inner, keepdims=True) - normed * along)
        grad_input = grad_input.astype(input.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = jnp.sum(g * normed, rows).astype(weight.dtype)
    if output_mask[2] and bias is not None:
        grad_bias = jnp.sum(g, rows).astype(bias.dtype)
    return grad_input, grad_weight, grad_bias


def _per_channel(parameter: Array, like: Array) -> Array:
    """A parameter [C] so that it meets axis 1 of `like`."""
    return _wide(parameter).reshape((1, -1) + (1,) * (like.ndim - 2))


@lowers("aten.native_group_norm.default")
def aten_native_group_norm_default(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    x = _wide(input).reshape(N, group, C // group * HxW)
    mean, rstd = _mean_and_rstd(x, (2,), eps)
    out = ((x - mean) * rstd).reshape(input.shape)
    if weight is not None:
        out = out * _per_channel(weight, out)
    if bias is not None:
        out = out + _per_channel(bias, out)
    kept = _statistics_dtype(input, weight)
    return out.astype(input.dtype), mean[..., 0].astype(kept), rstd[..., 0].astype(kept)


@lowers("aten.native_group_norm_backward.default")
def aten_native_group_norm_backward_default(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: tuple[bool, ...],
) -> tuple[Array | None, Array | None, Array | None]:
    shape = (N, group, C // group, HxW)
    g, x = _wide(grad_out).reshape(shape), _wide(input).reshape(shape)
    spread = _wide(rstd)[:, :, None, None]
    normed = (x - _wide(mean)[:, :, None, None]) * spread
    dtype = input.dtype if weight is None else weight.dtype
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * _wide(weight).reshape(1, group, C // group, 1)
        along = jnp.mean(scaled * normed, (2, 3), keepdims=True)
        rest = scaled - jnp.mean(scaled, (2, 3), keepdims=True) - normed * along
        grad_input = (rest * spread).reshape(input.shape).astype(input.dtype)
    if output_mask[1]:
        grad_weight = jnp.sum(g * normed, (0, 3)).reshape(C).astype(dtype)
    if output_mask[2]:
        grad_bias = jnp.sum(g, (0, 3)).reshape(C).astype(dtype)
    return grad_input, grad_weight, grad_bias


@lowers("aten._weight_norm_interface.default")
def aten__weight_norm_interface_default(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """`v` with the norm `g` on each slice along `dim`, and its norms, in float32 or wider."""
    axes = tuple(axis for axis in range(v.ndim) if axis != dim)
    wide = _wide(v)
    norms = jnp.sqrt(jnp.sum(wide * wide, axes, keepdims=True))
    return (wide * (_wide(g) / norms)).astype(v.dtype), norms


@lowers("aten._weight_norm_interface_backward.default")
def aten__weight_norm_interface_backward_default(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array, Array]:
    axes = tuple(axis for axis in range(saved_v.ndim) if axis != dim)
    grad, v, g, norms = (_wide(a) for a in (grad_w, saved_v, saved_g, saved_norms))
    along = jnp.sum(grad * v, axes, keepdims=True)
    grad_v = g / norms * (grad - v * along / (norms * norms))
    return grad_v.astype(saved_v.dtype), (along / norms).astype(saved_g.dtype)


def _normalized(
    input: Array, weight: Array | None, bias: Array | None, mean: Array, invstd: Array
) -> Array:
    """(input - mean) * invstd * weight + bias, per channel, in the input's dtype."""
    out = (_wide(input) - _per_channel(mean, input)) * _per_channel(invstd, input)
    if weight is not None:
        out = out * _per_channel(weight, out)
    if bias is not None:
        out = out + _per_channel(bias, out)
    return out.astype(input.dtype)


def _batch_statistics(input: Array) -> tuple[Array, Array, int]:
    """Mean and biased variance per channel, and how many elements each is over."""
    x = _wide(input)
    axes = (0, *range(2, x.ndim))
    mean = jnp.mean(x, axes)
    variance = jnp.mean(jnp.square(x - _per_channel(mean, x)), axes)
    return mean, variance, np.prod([x.shape[axis] for axis in axes]).item()


@lowers("aten._native_batch_norm_legit_functional.default")
def aten__native_batch_norm_legit_functional_default(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Output, the statistics that backward reads, and the new running statistics."""
    if not training:
        assert running_mean is not None
        assert running_var is not None
        invstd = lax.rsqrt(_wide(running_var) + eps)
        out = _normalized(input, weight, bias, running_mean, invstd)
        none = jnp.zeros((0,), input.dtype)
        return out, none, none, running_mean, running_var
    mean, variance, count = _batch_statistics(input)
    invstd = lax.rsqrt(variance + eps)
    out = _normalized(input, weight, bias, mean, invstd)
    new_mean, new_var = running_mean, running_var
    if running_mean is not None:
        new_mean = (momentum * mean + (1 - momentum) * running_mean).astype(running_mean.dtype)
    if running_var is not None:
        unbiased = variance * (count / (count - 1))
        new_var = (momentum * unbiased + (1 - momentum) * running_var).astype(running_var.dtype)
    kept = _statistics_dtype(input, weight)
    return out, mean.astype(kept), invstd.astype(kept), new_mean, new_var


@lowers("aten._native_batch_norm_legit.no_stats")
def aten__native_batch_norm_legit_no_stats(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    return aten__native_batch_norm_legit_functional_default(
        input, weight, bias, None, None, training, momentum, eps
    )[:3]


@lowers("aten._native_batch_norm_legit_no_training.default")
def aten__native_batch_norm_legit_no_training_default(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    return aten__native_batch_norm_legit_functional_default(
        input, weight, bias, running_mean, running_var, False, momentum, eps
    )[:3]


@lowers("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default")
def aten_native_batch_norm_default(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    return aten__native_batch_norm_legit_functional_default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )[:3]


@lowers("aten.native_batch_norm_backward.default")
def aten_native_batch_norm_backward_default(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: tuple[bool, ...],
) -> tuple[Array | None, Array | None, Array | None]:
    g, x = _wide(grad_out), _wide(input)
    axes = (0, *range(2, x.ndim))
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, invstd = _wide(save_mean), _wide(save_invstd)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, invstd = _wide(running_mean), lax.rsqrt(_wide(running_var) + eps)
    normed = (x - _per_channel(mean, x)) * _per_channel(invstd, x)
    scale = invstd if weight is None else invstd * _wide(weight)
    dtype = input.dtype if weight is None else weight.dtype
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        rest = g
        if train:
            along = jnp.mean(g * normed, axes, keepdims=True)
            rest = g - jnp.mean(g, axes, keepdims=True) - normed * along
        grad_input = (rest * _per_channel(scale, x)).astype(input.dtype)
    if output_mask[1]:
        grad_weight = jnp.sum(g * normed, axes).astype(dtype)
    if output_mask[2]:
        grad_bias = jnp.sum(g, axes).astype(dtype)
    return grad_input, grad_weight, grad_bias
