"""Batch normalisation: new running statistics are results, nothing is written."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._dtypes import _wide
from ._registry import lowers
from .normalization import _per_channel, _statistics_dtype


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
