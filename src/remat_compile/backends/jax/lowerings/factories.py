"""Arrays made from sizes and numbers, and random ones.

What PyTorch leaves undefined is zeros here. The same `key` draws the same numbers: a recompute
repeats its draw.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ._dtypes import _dtype, _promoted_dtype, _rank, _wide
from ._registry import lowers, lowers_each


@lowers("aten.zeros.default", "aten.empty.memory_format", "aten.empty_strided.default")
def aten_zeros_default(size: tuple[int, ...], *, dtype: DTypeLike | None = None) -> Array:
    return jnp.zeros(tuple(size), _dtype(dtype or jnp.float32))


@lowers("aten.new_zeros.default", "aten.new_empty.default", "aten.new_empty_strided.default")
def aten_new_zeros_default(
    x: Array, size: tuple[int, ...], *, dtype: DTypeLike | None = None
) -> Array:
    return jnp.zeros(tuple(size), _dtype(dtype or x.dtype))


def _stepped(start: float, end: float, step: float, dtype: DTypeLike | None) -> Array:
    """start, start + step, ... below `end`; of Python integers int64, else float32."""
    if dtype is None:
        dtype = jnp.int64 if _rank(_promoted_dtype(start, end, step)) < 2 else jnp.float32
    count = max(int(np.ceil((end - start) / step)), 0)
    # Half precision counts to 256 or 2048 only: it is rounded to at the end.
    exact = jnp.promote_types(_dtype(dtype), jnp.float32 if _rank(dtype) == 2 else jnp.int32)
    return (start + step * jnp.arange(count, dtype=exact)).astype(_dtype(dtype))


@lowers("aten.native_dropout.default")
def aten_native_dropout_default(
    input: Array, p: float, train: bool | None, *, key: Array
) -> tuple[Array, Array]:
    if train is False or p == 0:
        return input, jnp.ones(input.shape, jnp.bool_)
    mask = jax.random.bernoulli(key, 1 - p, input.shape)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return jnp.where(mask, _wide(input) * scale, 0).astype(input.dtype), mask


lowers_each(
    {
        "aten.ones.default": lambda size, *, dtype=None: jnp.ones(
            tuple(size), _dtype(dtype or jnp.float32)
        ),
        "aten.full.default": lambda size, fill_value, *, dtype=None: jnp.full(
            tuple(size), fill_value, _dtype(dtype or _promoted_dtype(fill_value))
        ),
        "aten.scalar_tensor.default": lambda s, *, dtype=None: jnp.asarray(
            s, _dtype(dtype or jnp.float32)
        ),
        "aten.zeros_like.default aten.empty_like.default": lambda x, *, dtype=None: jnp.zeros(
            x.shape, _dtype(dtype or x.dtype)
        ),
        "aten.ones_like.default": lambda x, *, dtype=None: jnp.ones(
            x.shape, _dtype(dtype or x.dtype)
        ),
        "aten.full_like.default": lambda x, fill_value, *, dtype=None: jnp.full(
            x.shape, fill_value, _dtype(dtype or x.dtype)
        ),
        "aten.new_ones.default": lambda x, size, *, dtype=None: jnp.ones(
            tuple(size), _dtype(dtype or x.dtype)
        ),
        "aten.new_full.default": lambda x, size, fill_value, *, dtype=None: jnp.full(
            tuple(size), fill_value, _dtype(dtype or x.dtype)
        ),
        "aten.arange.default": lambda end, *, dtype=None: _stepped(0, end, 1, dtype),
        "aten.arange.start": lambda start, end, *, dtype=None: _stepped(start, end, 1, dtype),
        "aten.arange.start_step": lambda start, end, step=1, *, dtype=None: _stepped(
            start, end, step, dtype
        ),
        "aten.linspace.default": lambda start, end, steps, *, dtype=None: jnp.linspace(
            start, end, steps, dtype=_dtype(dtype or jnp.float32)
        ),
        "aten.eye.default": lambda n, *, dtype=None: jnp.eye(n, dtype=_dtype(dtype or jnp.float32)),
        "aten.eye.m": lambda n, m, *, dtype=None: jnp.eye(n, m, dtype=_dtype(dtype or jnp.float32)),
        "aten.native_dropout_backward.default": lambda grad_output, mask, scale: jnp.where(
            mask, _wide(grad_output) * scale, 0
        ).astype(grad_output.dtype),
        "aten.bernoulli.p": lambda x, p, *, key: jax.random.bernoulli(key, p, x.shape).astype(
            x.dtype
        ),
        "aten.bernoulli.default": lambda x, *, key: jax.random.bernoulli(key, x).astype(x.dtype),
        "aten.rand.default": lambda size, *, dtype=None, key: jax.random.uniform(
            key, tuple(size), _dtype(dtype or jnp.float32)
        ),
        "aten.rand_like.default": lambda x, *, dtype=None, key: jax.random.uniform(
            key, x.shape, _dtype(dtype or x.dtype)
        ),
        "aten.randn.default": lambda size, *, dtype=None, key: jax.random.normal(
            key, tuple(size), _dtype(dtype or jnp.float32)
        ),
        "aten.randn_like.default": lambda x, *, dtype=None, key: jax.random.normal(
            key, x.shape, _dtype(dtype or x.dtype)
        ),
        "aten.randint.default": lambda high, size, *, dtype=jnp.int64, key: jax.random.randint(
            key, tuple(size), 0, high
        ).astype(_dtype(dtype)),
        "aten.randint.low": lambda low, high, size, *, dtype=jnp.int64, key: jax.random.randint(
            key, tuple(size), low, high
        ).astype(_dtype(dtype)),
        "aten.randperm.default": lambda n, *, dtype=jnp.int64, key: jax.random.permutation(
            key, n
        ).astype(_dtype(dtype)),
        "aten.exponential.default": lambda x, lambd=1.0, *, key: (
            jax.random.exponential(key, x.shape, x.dtype) / lambd
        ),
    }
)
