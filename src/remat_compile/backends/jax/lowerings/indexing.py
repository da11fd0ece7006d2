"""Reading and writing at computed places.

PyTorch refuses a place outside. Here `embedding` and `index_select` read NaN there, other
reads take the nearest place, and writes are dropped.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ._dtypes import _dtype, _wide
from ._registry import lowers


@lowers("aten.embedding.default")
def aten_embedding_default(weight: Array, indices: Array) -> Array:
    return jnp.take(weight, indices, axis=0)


@lowers("aten.embedding_dense_backward.default")
def aten_embedding_dense_backward_default(
    grad_output: Array,
    indices: Array,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Array:
    flat = indices.reshape(-1)
    rows = _wide(grad_output).reshape(flat.size, -1)
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights,), rows.dtype).at[flat].add(1)
        rows = rows / counts[flat][:, None]
    rows = jnp.where((flat == padding_idx)[:, None], 0, rows)
    grad_weight = jnp.zeros((num_weights, rows.shape[1]), rows.dtype).at[flat].add(rows)
    return grad_weight.astype(grad_output.dtype)


def _places(indices: tuple[Array | None, ...]) -> tuple[Array | slice, ...]:
    """An index per axis; None takes the axis whole."""
    return tuple(slice(None) if index is None else index for index in indices)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def aten_index_Tensor(x: Array, indices: tuple[Array | None, ...]) -> Array:
    return x[_places(indices)]


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def aten_index_put_default(
    x: Array, indices: tuple[Array | None, ...], values: Array, accumulate: bool = False
) -> Array:
    at = x.at[_places(indices)]
    return at.add(values.astype(x.dtype)) if accumulate else at.set(values.astype(x.dtype))


@lowers("aten.index_select.default")
def aten_index_select_default(x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, axis=dim)


@lowers("aten.index_add.default")
def aten_index_add_default(
    x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1
) -> Array:
    where = (slice(None),) * (dim % x.ndim) + (index,)
    return x.at[where].add((source * alpha).astype(x.dtype))


@lowers("aten.gather.default")
def aten_gather_default(x: Array, dim: int, index: Array) -> Array:
    return x[_along(index, dim)]


def _along(index: Array, dim: int) -> tuple[Array, ...]:
    """One index per axis: `index` along `dim`, its own position along the others."""
    axis = dim % index.ndim
    return tuple(
        index if a == axis else lax.broadcasted_iota(index.dtype, index.shape, a)
        for a in range(index.ndim)
    )


@lowers("aten.scatter.src")
def aten_scatter_src(x: Array, dim: int, index: Array, src: Array) -> Array:
    part = src[tuple(slice(0, n) for n in index.shape)]
    return x.at[_along(index, dim)].set(part)


@lowers("aten.scatter.value")
def aten_scatter_value(x: Array, dim: int, index: Array, value: ArrayLike) -> Array:
    return x.at[_along(index, dim)].set(jnp.asarray(value, x.dtype))


@lowers("aten.scatter_add.default")
def aten_scatter_add_default(x: Array, dim: int, index: Array, src: Array) -> Array:
    part = src[tuple(slice(0, n) for n in index.shape)]
    return x.at[_along(index, dim)].add(part)


@lowers("aten.topk.default")
def aten_topk_default(x: Array, k: int, dim: int = -1, largest: bool = True) -> tuple[Array, Array]:
    moved = jnp.moveaxis(x, dim, -1)
    if largest:
        values, index = lax.top_k(moved, k)
    else:
        index = jnp.argsort(moved, axis=-1, stable=True)[..., :k]
        values = jnp.take_along_axis(moved, index, -1)
    index = index.astype(_dtype(jnp.int64))
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(index, -1, dim)


@lowers("aten.sort.default")
def aten_sort_default(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    index = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, index, dim), index.astype(_dtype(jnp.int64))
