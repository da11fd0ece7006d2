"""Random operators. The same `key` draws the same numbers: a recompute repeats its draw."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ._dtypes import _dtype, _wide
from ._registry import lowers


@lowers("aten.native_dropout.default")
def aten_native_dropout_default(
    input: Array, p: float, train: bool | None, *, key: Array
) -> tuple[Array, Array]:
    if train is False or p == 0:
        return input, jnp.ones(input.shape, jnp.bool_)
    mask = jax.random.bernoulli(key, 1 - p, input.shape)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return jnp.where(mask, _wide(input) * scale, 0).astype(input.dtype), mask


@lowers("aten.native_dropout_backward.default")
def aten_native_dropout_backward_default(grad_output: Array, mask: Array, scale: float) -> Array:
    return jnp.where(mask, _wide(grad_output) * scale, 0).astype(grad_output.dtype)


@lowers("aten.bernoulli.p")
def aten_bernoulli_p(x: Array, p: float, *, key: Array) -> Array:
    return jax.random.bernoulli(key, p, x.shape).astype(x.dtype)


@lowers("aten.bernoulli.default")
def aten_bernoulli_default(x: Array, *, key: Array) -> Array:
    return jax.random.bernoulli(key, x).astype(x.dtype)


@lowers("aten.rand.default")
def aten_rand_default(
    size: tuple[int, ...], *, dtype: DTypeLike | None = None, key: Array
) -> Array:
    return jax.random.uniform(key, tuple(size), _dtype(dtype or jnp.float32))


@lowers("aten.rand_like.default")
def aten_rand_like_default(x: Array, *, dtype: DTypeLike | None = None, key: Array) -> Array:
    return jax.random.uniform(key, x.shape, _dtype(dtype or x.dtype))


@lowers("aten.randn.default")
def aten_randn_default(
    size: tuple[int, ...], *, dtype: DTypeLike | None = None, key: Array
) -> Array:
    return jax.random.normal(key, tuple(size), _dtype(dtype or jnp.float32))


@lowers("aten.randn_like.default")
def aten_randn_like_default(x: Array, *, dtype: DTypeLike | None = None, key: Array) -> Array:
    return jax.random.normal(key, x.shape, _dtype(dtype or x.dtype))


@lowers("aten.randint.default")
def aten_randint_default(
    high: int, size: tuple[int, ...], *, dtype: DTypeLike = jnp.int64, key: Array
) -> Array:
    return jax.random.randint(key, tuple(size), 0, high).astype(_dtype(dtype))


@lowers("aten.randint.low")
def aten_randint_low(
    low: int, high: int, size: tuple[int, ...], *, dtype: DTypeLike = jnp.int64, key: Array
) -> Array:
    return jax.random.randint(key, tuple(size), low, high).astype(_dtype(dtype))


@lowers("aten.randperm.default")
def aten_randperm_default(n: int, *, dtype: DTypeLike = jnp.int64, key: Array) -> Array:
    return jax.random.permutation(key, n).astype(_dtype(dtype))


@lowers("aten.exponential.default")
def aten_exponential_default(x: Array, lambd: float = 1.0, *, key: Array) -> Array:
    return jax.random.exponential(key, x.shape, x.dtype) / lambd
