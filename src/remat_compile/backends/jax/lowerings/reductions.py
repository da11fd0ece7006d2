"""Sums, means, extrema, scans and softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from ._dtypes import _dtype, _floating, _in_dtype, _rank, _wide
from ._registry import lowers, lowers_each


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


@lowers("aten.max.dim")
def aten_max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    if not x.ndim:
        return x, jnp.zeros((), _dtype(jnp.int64))
    index = jnp.argmax(x, dim, keepdims=keepdim)
    return jnp.max(x, dim, keepdims=keepdim), index.astype(_dtype(jnp.int64))


@lowers("aten.min.dim")
def aten_min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    if not x.ndim:
        return x, jnp.zeros((), _dtype(jnp.int64))
    index = jnp.argmin(x, dim, keepdims=keepdim)
    return jnp.min(x, dim, keepdims=keepdim), index.astype(_dtype(jnp.int64))


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


@lowers("aten.cumprod.default")
def aten_cumprod_default(x: Array, dim: int, *, dtype: DTypeLike | None = None) -> Array:
    if dtype is None:
        dtype = x.dtype if _rank(x.dtype) == 2 else jnp.int64
    return jnp.cumprod(x, dim, dtype=_dtype(dtype)) if x.ndim else _in_dtype(x, dtype)


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


def _running(x: Array, dim: int, least: bool) -> tuple[Array, Array]:
    """The best so far along a dimension, and its place: of equal ones the last."""
    if not x.ndim:
        return x, jnp.zeros((), _dtype(jnp.int64))
    scan = lax.cummin if least else lax.cummax
    best = scan(x, axis=dim % x.ndim)
    places = lax.broadcasted_iota(_dtype(jnp.int64), x.shape, dim % x.ndim)
    return best, lax.cummax(jnp.where(x == best, places, 0), axis=dim % x.ndim)


def _ranked(x: Array, rank: int, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """The element of a rank from below along a dimension, and its place."""
    if not x.ndim:
        return x, jnp.zeros((), _dtype(jnp.int64))
    place = lax.slice_in_dim(jnp.argsort(x, dim), rank, rank + 1, axis=dim)
    best = jnp.take_along_axis(x, place, dim)
    made = (best, place.astype(_dtype(jnp.int64)))
    return made if keepdim else (jnp.squeeze(made[0], dim), jnp.squeeze(made[1], dim))


lowers_each(
    {
        "aten.sum.default": lambda x, *, dtype=None: _summed(x, None, False, dtype),
        "aten.sum.dim_IntList": lambda x, dim, keepdim=False, *, dtype=None: _summed(
            x, dim, keepdim, dtype
        ),
        "aten.mean.default": lambda x, *, dtype=None: jnp.mean(_in_dtype(x, dtype)),
        "aten.mean.dim": lambda x, dim, keepdim=False, *, dtype=None: jnp.mean(
            _in_dtype(x, dtype), _axes(x, dim), keepdims=keepdim
        ),
        "aten.var.correction": lambda x, dim=None, *, correction=None, keepdim=False: _variance(
            x, _axes(x, dim), correction, keepdim
        ).astype(x.dtype),
        "aten.std.correction": lambda x, dim=None, *, correction=None, keepdim=False: jnp.sqrt(
            _variance(x, _axes(x, dim), correction, keepdim)
        ).astype(x.dtype),
        "aten.amax.default": lambda x, dim=(), keepdim=False: jnp.max(
            x, _axes(x, dim), keepdims=keepdim
        ),
        "aten.amin.default": lambda x, dim=(), keepdim=False: jnp.min(
            x, _axes(x, dim), keepdims=keepdim
        ),
        "aten.max.default": lambda x: jnp.max(x),
        "aten.min.default": lambda x: jnp.min(x),
        "aten.argmax.default": lambda x, dim=None, keepdim=False: jnp.argmax(
            x, dim, keepdims=keepdim
        ).astype(_dtype(jnp.int64)),
        "aten.argmin.default": lambda x, dim=None, keepdim=False: jnp.argmin(
            x, dim, keepdims=keepdim
        ).astype(_dtype(jnp.int64)),
        "aten.any.default": lambda x: jnp.any(x),
        "aten.any.dim": lambda x, dim, keepdim=False: jnp.any(x, dim, keepdims=keepdim),
        "aten.all.default": lambda x: jnp.all(x),
        "aten.all.dim": lambda x, dim, keepdim=False: jnp.all(x, dim, keepdims=keepdim),
        "aten.norm.ScalarOpt_dim": lambda x, p, dim, keepdim=False: _norm(
            x, 2 if p is None else p, _axes(x, dim), keepdim
        ),
        "aten.trace.default": lambda x: _summed(jnp.diagonal(x), None, False, None),
        "aten.cummax.default": lambda x, dim: _running(x, dim, False),
        "aten.cummin.default": lambda x, dim: _running(x, dim, True),
        "aten.logcumsumexp.default": lambda x, dim: (
            lax.cumlogsumexp(x, dim % x.ndim) if x.ndim else x
        ),
        "aten.kthvalue.default": lambda x, k, dim=-1, keepdim=False: _ranked(
            x, k - 1, dim, keepdim
        ),
        "aten.median.dim": lambda x, dim, keepdim=False: _ranked(
            x, ((x.shape[dim] if x.ndim else 1) - 1) // 2, dim, keepdim
        ),
        "aten.median.default": lambda x: jnp.where(
            jnp.isnan(x).any(), jnp.nan, jnp.sort(x.ravel())[(x.size - 1) // 2]
        ).astype(x.dtype),
        "aten.nanmedian.default": lambda x: jnp.sort(x.ravel())[
            jnp.maximum((~jnp.isnan(x)).sum() - 1, 0) // 2
        ],
        "aten.aminmax.default": lambda x, *, dim=None, keepdim=False: (
            jnp.min(x, dim, keepdims=keepdim) if x.ndim else x,
            jnp.max(x, dim, keepdims=keepdim) if x.ndim else x,
        ),
        "aten.std_mean.correction": lambda x, dim=None, *, correction=None, keepdim=False: (
            jnp.sqrt(_variance(_wide(x), _axes(x, dim), correction, keepdim)).astype(x.dtype),
            jnp.mean(_wide(x), _axes(x, dim), keepdims=keepdim).astype(x.dtype),
        ),
        "aten.dist.default": lambda x, other, p=2: _norm(jnp.ravel(x - other), p, (0,), False),
        "aten.count_nonzero.default": (lambda x, dim=None: (x != 0).sum(_axes(x, dim))),
        "aten.nansum.default": lambda x, dim=None, keepdim=False, *, dtype=None: _summed(
            jnp.where(jnp.isnan(x), 0, x), dim, keepdim, dtype
        ),
    }
)
