"""Softmax and its logarithm, forward and backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ._dtypes import _dtype, _in_dtype, _wide
from ._registry import lowers


@lowers("aten._softmax.default")
def aten__softmax_default(x: Array, dim: int, half_to_float: bool) -> Array:
    probabilities = jax.nn.softmax(_wide(x), dim) if x.ndim else jnp.ones_like(_wide(x))
    return probabilities if half_to_float else probabilities.astype(x.dtype)


@lowers("aten._safe_softmax.default")
def aten__safe_softmax_default(x: Array, dim: int, dtype: DTypeLike | None = None) -> Array:
    wanted = _in_dtype(x, dtype)
    # A row with nothing to attend to gives zeros, not NaN.
    empty = jnp.all(jnp.isneginf(wanted), dim, keepdims=True)
    probabilities = jax.nn.softmax(_wide(jnp.where(empty, 0, wanted)), dim)
    return jnp.where(empty, 0, probabilities).astype(wanted.dtype)


@lowers("aten._softmax_backward_data.default")
def aten__softmax_backward_data_default(
    grad_output: Array, output: Array, dim: int, input_dtype: DTypeLike
) -> Array:
    g, y = _wide(grad_output), _wide(output)
    weighted = g * y
    total = jnp.sum(weighted, dim, keepdims=True) if g.ndim else weighted
    return (weighted - y * total).astype(_dtype(input_dtype))


@lowers("aten._log_softmax.default")
def aten__log_softmax_default(x: Array, dim: int, half_to_float: bool) -> Array:
    log_probabilities = jax.nn.log_softmax(_wide(x), dim) if x.ndim else jnp.zeros_like(_wide(x))
    return log_probabilities if half_to_float else log_probabilities.astype(x.dtype)


@lowers("aten._log_softmax_backward_data.default")
def aten__log_softmax_backward_data_default(
    grad_output: Array, output: Array, dim: int, input_dtype: DTypeLike
) -> Array:
    g, y = _wide(grad_output), _wide(output)
    total = jnp.sum(g, dim, keepdims=True) if g.ndim else g
    return (g - jnp.exp(y) * total).astype(_dtype(input_dtype))
