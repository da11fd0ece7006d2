"""Views and changes of shape. JAX arrays have no strides: only the values count."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from ._dtypes import _dtype
from ._registry import lowers


@lowers("aten.alias.default", "aten.detach.default")
def aten_alias_default(x: Array) -> Array:
    return x


@lowers("aten.view.default", "aten._unsafe_view.default")
def aten_view_default(x: Array, size: tuple[int, ...]) -> Array:
    return jnp.reshape(x, tuple(size))


@lowers("aten.reshape.default")
def aten_reshape_default(x: Array, shape: tuple[int, ...]) -> Array:
    return jnp.reshape(x, tuple(shape))


@lowers("aten.view.dtype")
def aten_view_dtype(x: Array, dtype: DTypeLike) -> Array:
    return jnp.asarray(x.view(_dtype(dtype)))


@lowers("aten.expand.default")
def aten_expand_default(x: Array, size: tuple[int, ...]) -> Array:
    new = len(size) - x.ndim
    kept = (n if n != -1 else x.shape[i - new] for i, n in enumerate(size))
    return jnp.broadcast_to(x, tuple(kept))


@lowers("aten.permute.default")
def aten_permute_default(x: Array, dims: tuple[int, ...]) -> Array:
    return jnp.transpose(x, tuple(dims))


@lowers("aten.t.default")
def aten_t_default(x: Array) -> Array:
    return x.T


@lowers("aten.transpose.int")
def aten_transpose_int(x: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


@lowers("aten.unsqueeze.default")
def aten_unsqueeze_default(x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, dim)


def _without_axes(x: Array, dims: tuple[int, ...]) -> Array:
    """`x` without those of the axes `dims` whose length is 1."""
    axes = {dim % x.ndim for dim in dims} if x.ndim else set()
    return jnp.squeeze(x, tuple(axis for axis in sorted(axes) if x.shape[axis] == 1))


@lowers("aten.squeeze.default")
def aten_squeeze_default(x: Array) -> Array:
    return jnp.squeeze(x)


@lowers("aten.squeeze.dim")
def aten_squeeze_dim(x: Array, dim: int) -> Array:
    return _without_axes(x, (dim,))


@lowers("aten.squeeze.dims")
def aten_squeeze_dims(x: Array, dim: tuple[int, ...]) -> Array:
    return _without_axes(x, tuple(dim))


@lowers("aten.select.int")
def aten_select_int(x: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(x, index, dim % x.ndim, keepdims=False)


def _slice_bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and end as PyTorch reads them: negative from the end, then clamped."""
    first, last, _ = slice(start, end).indices(length)
    return first, max(first, last)


@lowers("aten.slice.Tensor")
def aten_slice_Tensor(
    x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    axis = dim % x.ndim
    first, last = _slice_bounds(x.shape[axis], start, end)
    return lax.slice_in_dim(x, first, last, step, axis)


@lowers("aten.split.Tensor")
def aten_split_Tensor(x: Array, split_size: int, dim: int = 0) -> tuple[Array, ...]:
    axis = dim % x.ndim
    length = x.shape[axis]
    starts = range(0, max(length, 1), split_size or 1)
    return tuple(lax.slice_in_dim(x, s, min(s + split_size, length), 1, axis) for s in starts)


@lowers("aten.split_with_sizes.default")
def aten_split_with_sizes_default(
    x: Array, split_sizes: tuple[int, ...], dim: int = 0
) -> tuple[Array, ...]:
    axis, parts, start = dim % x.ndim, [], 0
    for size in split_sizes:
        parts.append(lax.slice_in_dim(x, start, start + size, 1, axis))
        start += size
    return tuple(parts)


@lowers("aten.unbind.int")
def aten_unbind_int(x: Array, dim: int = 0) -> tuple[Array, ...]:
    axis = dim % x.ndim
    return tuple(lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis]))


@lowers("aten.diagonal.default")
def aten_diagonal_default(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    diagonal: Array = jnp.diagonal(x, offset, dim1, dim2)
    return diagonal


@lowers("aten.unfold.default")
def aten_unfold_default(x: Array, dimension: int, size: int, step: int) -> Array:
    axis = dimension % x.ndim
    starts = range(0, x.shape[axis] - size + 1, step)
    windows = [lax.slice_in_dim(x, s, s + size, 1, axis) for s in starts]
    return jnp.moveaxis(jnp.stack(windows, axis), axis + 1, -1)


@lowers("aten.diagonal_backward.default")
def aten_diagonal_backward_default(
    grad_output: Array, input_sizes: tuple[int, ...], offset: int, dim1: int, dim2: int
) -> Array:
    moved = jnp.moveaxis(jnp.zeros(tuple(input_sizes), grad_output.dtype), (dim1, dim2), (-2, -1))
    place = jnp.arange(grad_output.shape[-1])
    rows, columns = place + max(-offset, 0), place + max(offset, 0)
    return jnp.moveaxis(moved.at[..., rows, columns].set(grad_output), (-2, -1), (dim1, dim2))


@lowers("aten.diag_embed.default")
def aten_diag_embed_default(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    length = x.shape[-1] + abs(offset)
    place = jnp.arange(x.shape[-1])
    rows, columns = place + max(-offset, 0), place + max(offset, 0)
    square = jnp.zeros((*x.shape[:-1], length, length), x.dtype)
    return jnp.moveaxis(square.at[..., rows, columns].set(x), (-2, -1), (dim1, dim2))
