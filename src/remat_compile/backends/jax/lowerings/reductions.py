"""Sums, means, extrema and scans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ._dtypes import _dtype, _floating, _in_dtype, _rank, _wide
from ._registry import lowers


def _axes(x: Array, dim: tuple[int, ...] | int | None) -> tuple[int, ...]:
    """The axes that `dim` names: all of them for None and for an empty list."""
    if isinstance(dim, int):
        dim = (dim,)
    if not dim or not x.ndim:
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in dim)


def _summed(
    x: Array, dim: tuple[int, ...] | int | None, keepdim: bool, dtype: DTypeLike | None
) -> Array:
    """The sum in `dtype`; of integers and bool, in int64."""
    if dtype is None:
        dtype = x.dtype if _rank(x.dtype) == 2 else jnp.int64
    return jnp.sum(x, _axes(x, dim), dtype=_dtype(dtype), keepdims=keepdim)


@lowers("aten.sum.default")
def aten_sum_default(x: Array, *, dtype: DTypeLike | None = None) -> Array:
    return _summed(x, None, False, dtype)


@lowers("aten.sum.dim_IntList")
def aten_sum_dim_IntList(
    x: Array,
    dim: tuple[int, ...] | None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    return _summed(x, dim, keepdim, dtype)


@lowers("aten.mean.default")
def aten_mean_default(x: Array, *, dtype: DTypeLike | None = None) -> Array:
    return jnp.mean(_in_dtype(x, dtype))


@lowers("aten.mean.dim")
def aten_mean_dim(
    x: Array,
    dim: tuple[int, ...] | None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    return jnp.mean(_in_dtype(x, dtype), _axes(x, dim), keepdims=keepdim)


@lowers("aten.prod.default")
def aten_prod_default(x: Array, *, dtype: DTypeLike | None = None) -> Array:
    wanted = dtype or (x.dtype if _rank(x.dtype) == 2 else jnp.int64)
    return jnp.prod(x, dtype=_dtype(wanted))


@lowers("aten.prod.dim_int")
def aten_prod_dim_int(
    x: Array, dim: int, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Array:
    wanted = dtype or (x.dtype if _rank(x.dtype) == 2 else jnp.int64)
    return jnp.prod(x, dim, dtype=_dtype(wanted), keepdims=keepdim)


def _variance(x: Array, axes: tuple[int, ...], correction: float | None, keepdim: bool) -> Array:
    """Mean square distance to the mean, over n - correction elements, at least 0."""
    wide = _wide(x)
    count = np.prod([x.shape[axis] for axis in axes]).item()
    square = jnp.square(wide - jnp.mean(wide, axes, keepdims=True))
    left = max(count - (1 if correction is None else correction), 0)
    return jnp.sum(square, axes, keepdims=keepdim) / left


@lowers("aten.var.correction")
def aten_var_correction(
    x: Array,
    dim: tuple[int, ...] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Array:
    return _variance(x, _axes(x, dim), correction, keepdim).astype(x.dtype)


@lowers("aten.std.correction")
def aten_std_correction(
    x: Array,
    dim: tuple[int, ...] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Array:
    return jnp.sqrt(_variance(x, _axes(x, dim), correction, keepdim)).astype(x.dtype)


@lowers("aten.var_mean.correction")
def aten_var_mean_correction(
    x: Array,
    dim: tuple[int, ...] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Array, Array]:
    axes = _axes(x, dim)
    variance = _variance(x, axes, correction, keepdim).astype(x.dtype)
    return variance, jnp.mean(x, axes, keepdims=keepdim)


@lowers("aten.amax.default")
def aten_amax_default(x: Array, dim: tuple[int, ...] = (), keepdim: bool = False) -> Array:
    return jnp.max(x, _axes(x, dim), keepdims=keepdim)


@lowers("aten.amin.default")
def aten_amin_default(x: Array, dim: tuple[int, ...] = (), keepdim: bool = False) -> Array:
    return jnp.min(x, _axes(x, dim), keepdims=keepdim)


@lowers("aten.max.default")
def aten_max_default(x: Array) -> Array:
    return jnp.max(x)


@lowers("aten.min.default")
def aten_min_default(x: Array) -> Array:
    return jnp.min(x)


@lowers("aten.max.dim")
def aten_max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    index = jnp.argmax(x, dim, keepdims=keepdim)
    return jnp.max(x, dim, keepdims=keepdim), index.astype(_dtype(jnp.int64))


@lowers("aten.min.dim")
def aten_min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    index = jnp.argmin(x, dim, keepdims=keepdim)
    return jnp.min(x, dim, keepdims=keepdim), index.astype(_dtype(jnp.int64))


@lowers("aten.argmax.default")
def aten_argmax_default(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmax(x, dim, keepdims=keepdim).astype(_dtype(jnp.int64))


@lowers("aten.argmin.default")
def aten_argmin_default(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmin(x, dim, keepdims=keepdim).astype(_dtype(jnp.int64))


@lowers("aten.any.default")
def aten_any_default(x: Array) -> Array:
    return jnp.any(x)


@lowers("aten.any.dim")
def aten_any_dim(x: Array, dim: int, keepdim: bool = False) -> Array:
    return jnp.any(x, dim, keepdims=keepdim)


@lowers("aten.all.default")
def aten_all_default(x: Array) -> Array:
    return jnp.all(x)


@lowers("aten.all.dim")
def aten_all_dim(x: Array, dim: int, keepdim: bool = False) -> Array:
    return jnp.all(x, dim, keepdims=keepdim)


@lowers("aten.logsumexp.default")
def aten_logsumexp_default(x: Array, dim: tuple[int, ...], keepdim: bool = False) -> Array:
    return jax.nn.logsumexp(_wide(_floating(x)), _axes(x, dim), keepdims=keepdim).astype(
        _floating(x).dtype
    )


@lowers("aten.cumsum.default")
def aten_cumsum_default(x: Array, dim: int, *, dtype: DTypeLike | None = None) -> Array:
    if dtype is None:
        dtype = x.dtype if _rank(x.dtype) == 2 else jnp.int64
    return jnp.cumsum(x, dim, dtype=_dtype(dtype)) if x.ndim else _in_dtype(x, dtype)


def _norm(x: Array, order: float, axes: tuple[int, ...], keepdim: bool) -> Array:
    """The vector norm of an order over axes, in the dtype of `x`."""
    size = jnp.abs(_wide(x))
    if order == 2:
        norm = jnp.sqrt(jnp.sum(size * size, axes, keepdims=keepdim))
    elif order == float("inf"):
        norm = jnp.max(size, axes, keepdims=keepdim)
    elif order == float("-inf"):
        norm = jnp.min(size, axes, keepdims=keepdim)
    elif order == 0:
        norm = jnp.sum(size != 0, axes, keepdims=keepdim)
    else:
        norm = jnp.sum(size**order, axes, keepdims=keepdim) ** (1 / order)
    return norm.astype(x.dtype)


@lowers("aten.linalg_vector_norm.default")
def aten_linalg_vector_norm_default(
    x: Array,
    ord: float = 2,
    dim: tuple[int, ...] | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    return _norm(_in_dtype(x, dtype), ord, _axes(x, dim), keepdim)


@lowers("aten.norm.ScalarOpt_dim")
def aten_norm_ScalarOpt_dim(
    x: Array, p: float | None, dim: tuple[int, ...], keepdim: bool = False
) -> Array:
    return _norm(x, 2 if p is None else p, _axes(x, dim), keepdim)


@lowers("aten.cumprod.default")
def aten_cumprod_default(x: Array, dim: int, *, dtype: DTypeLike | None = None) -> Array:
    if dtype is None:
        dtype = x.dtype if _rank(x.dtype) == 2 else jnp.int64
    return jnp.cumprod(x, dim, dtype=_dtype(dtype)) if x.ndim else _in_dtype(x, dtype)


@lowers("aten.trace.default")
def aten_trace_default(x: Array) -> Array:
    return _summed(jnp.diagonal(x), None, False, None)
