"""Arrays made from sizes and numbers.

What PyTorch leaves undefined is zeros here.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ._dtypes import _dtype, _promoted_dtype, _rank
from ._registry import lowers


@lowers("aten.zeros.default", "aten.empty.memory_format", "aten.empty_strided.default")
def aten_zeros_default(size: tuple[int, ...], *, dtype: DTypeLike | None = None) -> Array:
    return jnp.zeros(tuple(size), _dtype(dtype or jnp.float32))


@lowers("aten.ones.default")
def aten_ones_default(size: tuple[int, ...], *, dtype: DTypeLike | None = None) -> Array:
    return jnp.ones(tuple(size), _dtype(dtype or jnp.float32))


@lowers("aten.full.default")
def aten_full_default(
    size: tuple[int, ...], fill_value: float, *, dtype: DTypeLike | None = None
) -> Array:
    return jnp.full(tuple(size), fill_value, _dtype(dtype or _promoted_dtype(fill_value)))


@lowers("aten.scalar_tensor.default")
def aten_scalar_tensor_default(s: float, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.asarray(s, _dtype(dtype or jnp.float32))


@lowers("aten.zeros_like.default", "aten.empty_like.default")
def aten_zeros_like_default(x: Array, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.zeros(x.shape, _dtype(dtype or x.dtype))


@lowers("aten.ones_like.default")
def aten_ones_like_default(x: Array, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.ones(x.shape, _dtype(dtype or x.dtype))


@lowers("aten.full_like.default")
def aten_full_like_default(x: Array, fill_value: float, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.full(x.shape, fill_value, _dtype(dtype or x.dtype))


@lowers("aten.new_zeros.default", "aten.new_empty.default", "aten.new_empty_strided.default")
def aten_new_zeros_default(
    x: Array, size: tuple[int, ...], *, dtype: DTypeLike | None = None
) -> Array:
    return jnp.zeros(tuple(size), _dtype(dtype or x.dtype))


@lowers("aten.new_ones.default")
def aten_new_ones_default(
    x: Array, size: tuple[int, ...], *, dtype: DTypeLike | None = None
) -> Array:
    return jnp.ones(tuple(size), _dtype(dtype or x.dtype))


@lowers("aten.new_full.default")
def aten_new_full_default(
    x: Array, size: tuple[int, ...], fill_value: float, *, dtype: DTypeLike | None = None
) -> Array:
    return jnp.full(tuple(size), fill_value, _dtype(dtype or x.dtype))


def _stepped(start: float, end: float, step: float, dtype: DTypeLike | None) -> Array:
    """start, start + step, ... below `end`; of Python integers int64, else float32."""
    if dtype is None:
        dtype = jnp.int64 if _rank(_promoted_dtype(start, end, step)) < 2 else jnp.float32
    count = max(int(np.ceil((end - start) / step)), 0)
    # Half precision counts to 256 or 2048 only: it is rounded to at the end.
    exact = jnp.promote_types(_dtype(dtype), jnp.float32 if _rank(dtype) == 2 else jnp.int32)
    return (start + step * jnp.arange(count, dtype=exact)).astype(_dtype(dtype))


@lowers("aten.arange.default")
def aten_arange_default(end: float, *, dtype: DTypeLike | None = None) -> Array:
    return _stepped(0, end, 1, dtype)


@lowers("aten.arange.start")
def aten_arange_start(start: float, end: float, *, dtype: DTypeLike | None = None) -> Array:
    return _stepped(start, end, 1, dtype)


@lowers("aten.arange.start_step")
def aten_arange_start_step(
    start: float, end: float, step: float = 1, *, dtype: DTypeLike | None = None
) -> Array:
    return _stepped(start, end, step, dtype)


@lowers("aten.linspace.default")
def aten_linspace_default(
    start: float, end: float, steps: int, *, dtype: DTypeLike | None = None
) -> Array:
    return jnp.linspace(start, end, steps, dtype=_dtype(dtype or jnp.float32))


@lowers("aten.eye.default")
def aten_eye_default(n: int, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.eye(n, dtype=_dtype(dtype or jnp.float32))


@lowers("aten.eye.m")
def aten_eye_m(n: int, m: int, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.eye(n, m, dtype=_dtype(dtype or jnp.float32))
