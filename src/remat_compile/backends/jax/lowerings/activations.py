"""Activation functions and their gradients, computed in float32 where x is narrower."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ._dtypes import _floating, _wide
from ._registry import lowers, lowers_each


@lowers("aten.sigmoid_backward.default")
def aten_sigmoid_backward_default(grad_output: Array, output: Array) -> Array:
    g, y = _wide(grad_output), _wide(output)
    return (g * (1 - y) * y).astype(grad_output.dtype)


@lowers("aten.tanh_backward.default")
def aten_tanh_backward_default(grad_output: Array, output: Array) -> Array:
    g, y = _wide(grad_output), _wide(output)
    return (g * (1 - y * y)).astype(grad_output.dtype)


@lowers("aten.silu.default")
def aten_silu_default(x: Array) -> Array:
    wide = _wide(x)
    return (wide * jax.nn.sigmoid(wide)).astype(x.dtype)


@lowers("aten.silu_backward.default")
def aten_silu_backward_default(grad_output: Array, x: Array) -> Array:
    g, wide = _wide(grad_output), _wide(x)
    s = jax.nn.sigmoid(wide)
    return (g * s * (1 + wide * (1 - s))).astype(grad_output.dtype)


@lowers("aten.gelu.default")
def aten_gelu_default(x: Array, *, approximate: str = "none") -> Array:
    wide = _wide(x)
    if approximate == "tanh":
        inner = 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide)
        return (0.5 * wide * (1 + jnp.tanh(inner))).astype(x.dtype)
    return (0.5 * wide * (1 + lax.erf(wide * 0.7071067811865476))).astype(x.dtype)


@lowers("aten.gelu_backward.default")
def aten_gelu_backward_default(grad_output: Array, x: Array, *, approximate: str = "none") -> Array:
    g, wide = _wide(grad_output), _wide(x)
    if approximate == "tanh":
        scale = 0.7978845608028654  # the root of 2 / pi
        t = jnp.tanh(scale * (wide + 0.044715 * wide * wide * wide))
        inner = scale * (1 + 3 * 0.044715 * wide * wide)
        slope = 0.5 * (1 + t) + 0.5 * wide * (1 - t * t) * inner
    else:
        cdf = 0.5 * (1 + lax.erf(wide * 0.7071067811865476))
        slope = cdf + wide * jnp.exp(-0.5 * wide * wide) * 0.3989422804014327
    return (g * slope).astype(grad_output.dtype)


@lowers("aten.softplus.default")
def aten_softplus_default(x: Array, beta: float = 1, threshold: float = 20) -> Array:
    wide = _wide(x)
    bent = jnp.log1p(jnp.exp(jnp.minimum(wide * beta, threshold))) / beta
    return jnp.where(wide * beta > threshold, wide, bent).astype(x.dtype)


@lowers("aten.softplus_backward.default")
def aten_softplus_backward_default(
    grad_output: Array, x: Array, beta: float, threshold: float
) -> Array:
    g, wide = _wide(grad_output), _wide(x)
    slope = jnp.where(wide * beta > threshold, 1, jax.nn.sigmoid(wide * beta))
    return (g * slope).astype(grad_output.dtype)


@lowers("aten.elu.default")
def aten_elu_default(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Array:
    wide = _wide(x)
    low = jnp.expm1(jnp.minimum(wide, 0) * input_scale) * alpha * scale
    return jnp.where(wide <= 0, low, wide * scale).astype(x.dtype)


@lowers("aten.elu_backward.default")
def aten_elu_backward_default(
    grad_output: Array,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: Array,
) -> Array:
    g, x = _wide(grad_output), _wide(self_or_result)
    if is_result:
        low = g * input_scale * (x + alpha * scale)
    else:
        low = g * input_scale * alpha * scale * jnp.exp(jnp.minimum(x, 0) * input_scale)
    return jnp.where(x <= 0, low, g * scale).astype(grad_output.dtype)


@lowers("aten.hardtanh_backward.default")
def aten_hardtanh_backward_default(
    grad_output: Array, x: Array, min_val: float, max_val: float
) -> Array:
    outside = (x <= min_val) | (x >= max_val)
    return jnp.where(outside, jnp.zeros_like(grad_output), grad_output)


@lowers("aten.hardswish.default")
def aten_hardswish_default(x: Array) -> Array:
    wide = _wide(x)
    return (wide * jnp.clip(wide + 3, 0, 6) / 6).astype(x.dtype)


@lowers("aten.hardswish_backward.default")
def aten_hardswish_backward_default(grad_output: Array, x: Array) -> Array:
    g, wide = _wide(grad_output), _wide(x)
    inner = jnp.where(wide <= 3, g * (wide / 3 + 0.5), g)
    return jnp.where(wide < -3, 0, inner).astype(grad_output.dtype)


@lowers("aten.hardsigmoid_backward.default")
def aten_hardsigmoid_backward_default(grad_output: Array, x: Array) -> Array:
    # PyTorch multiplies by the float32 nearest to a sixth, in float64 too.
    inside = (x > -3) & (x < 3)
    return jnp.where(inside, grad_output * 0.1666666716337204, jnp.zeros_like(grad_output))


@lowers("aten.log_sigmoid_forward.default")
def aten_log_sigmoid_forward_default(x: Array) -> tuple[Array, Array]:
    wide = _wide(x)
    buffer = jnp.exp(-jnp.abs(wide))
    output = jnp.minimum(wide, 0) - jnp.log1p(buffer)
    return output.astype(x.dtype), buffer.astype(x.dtype)


@lowers("aten.log_sigmoid_backward.default")
def aten_log_sigmoid_backward_default(grad_output: Array, x: Array) -> Array:
    g, wide = _wide(grad_output), _wide(x)
    return (g * jax.nn.sigmoid(-wide)).astype(grad_output.dtype)


@lowers("aten.mish.default")
def aten_mish_default(x: Array) -> Array:
    wide = _wide(x)
    return (wide * jnp.tanh(jax.nn.softplus(wide))).astype(x.dtype)


@lowers("aten.mish_backward.default")
def aten_mish_backward_default(grad_output: Array, x: Array) -> Array:
    g, wide = _wide(grad_output), _wide(x)
    t = jnp.tanh(jax.nn.softplus(wide))
    return (g * (t + wide * jax.nn.sigmoid(wide) * (1 - t * t))).astype(grad_output.dtype)


def _halves(x: Array, dim: int) -> tuple[Array, Array]:
    first, second = jnp.split(_wide(x), 2, dim)
    return first, second


@lowers("aten.glu.default")
def aten_glu_default(x: Array, dim: int = -1) -> Array:
    value, gate = _halves(x, dim)
    return (value * jax.nn.sigmoid(gate)).astype(x.dtype)


@lowers("aten.glu_backward.default")
def aten_glu_backward_default(grad_output: Array, x: Array, dim: int) -> Array:
    value, gate = _halves(x, dim)
    g, s = _wide(grad_output), jax.nn.sigmoid(gate)
    return jnp.concatenate((g * s, g * value * s * (1 - s)), dim).astype(x.dtype)


@lowers("aten.celu.default")
def aten_celu_default(x: Array, alpha: float = 1.0) -> Array:
    wide = _wide(x)
    low = alpha * jnp.expm1(jnp.minimum(wide, 0) / alpha)
    return jnp.where(wide <= 0, low, wide).astype(x.dtype)


@lowers("aten._prelu_kernel_backward.default")
def aten__prelu_kernel_backward_default(
    grad_output: Array, x: Array, weight: Array
) -> tuple[Array, Array]:
    """The second result has the shape of `x`: the sum over what `weight` serves comes after."""
    positive = x > 0
    return (
        jnp.where(positive, grad_output, weight * grad_output),
        jnp.where(positive, jnp.zeros_like(x), x * grad_output),
    )


def _logit(x: Array, eps: float | None) -> Array:
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return jnp.log(x / (1 - x))


lowers_each(
    {
        "aten.relu.default": lambda x: jnp.maximum(x, 0),
        "aten.threshold_backward.default": lambda grad_output, x, threshold: jnp.where(
            x <= threshold, jnp.zeros_like(grad_output), grad_output
        ),
        "aten.sigmoid.default": lambda x: jax.nn.sigmoid(_floating(x)),
        "aten.leaky_relu.default": lambda x, negative_slope=0.01: jnp.where(
            x > 0, x, x * negative_slope
        ),
        "aten.leaky_relu_backward.default": lambda grad_output, x, negative_slope: jnp.where(
            x > 0, grad_output, grad_output * negative_slope
        ),
        "aten.hardtanh.default": lambda x, min_val=-1, max_val=1: jnp.clip(x, min_val, max_val),
        "aten.hardsigmoid.default": lambda x: (jnp.clip(_wide(x) + 3, 0, 6) / 6).astype(x.dtype),
        "aten._prelu_kernel.default": lambda x, weight: jnp.where(x > 0, x, weight * x),
        "aten.threshold.default": lambda x, threshold, value: jnp.where(
            x > threshold, x, jnp.asarray(value, x.dtype)
        ),
        "aten.softshrink.default": lambda x, lambd=0.5: jnp.where(
            jnp.abs(x) > lambd, x - jnp.sign(x) * lambd, x * 0
        ),
        "aten.hardshrink.default": lambda x, lambd=0.5: jnp.where(jnp.abs(x) > lambd, x, 0),
        "aten.softshrink_backward.default": (
            lambda grad_output, x, lambd: jnp.where(jnp.abs(x) > lambd, grad_output, 0)
        ),
        "aten.hardshrink_backward.default": lambda grad_out, x, lambd: jnp.where(
            jnp.abs(x) > lambd, grad_out, 0
        ),
        "aten.logit.default": lambda x, eps=None: _logit(x, eps),
        "aten.logit_backward.default": lambda grad_output, x, eps=None: jnp.where(
            (x >= (eps or 0)) & (x <= 1 - (eps or 0)),
            grad_output / (x * (1 - x)),
            jnp.nan if eps is None else 0.0,
        ),
    }
)
