"""Views, copies, joins, rearrangements and indexing.

JAX arrays have no strides: only the values count.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ._dtypes import _dtype, _in_dtype, _promoted, _wide
from ._registry import lowers, lowers_each


@lowers("aten.expand.default")
def aten_expand_default(x: Array, size: tuple[int, ...]) -> Array:
    new = len(size) - x.ndim
    kept = (n if n != -1 else x.shape[i - new] for i, n in enumerate(size))
    return jnp.broadcast_to(x, tuple(kept))


def _without_axes(x: Array, dims: tuple[int, ...]) -> Array:
    """`x` without those of the axes `dims` whose length is 1."""
    axes = {dim % x.ndim for dim in dims} if x.ndim else set()
    return jnp.squeeze(x, tuple(axis for axis in sorted(axes) if x.shape[axis] == 1))


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


@lowers("aten.cat.default")
def aten_cat_default(tensors: tuple[Array, ...], dim: int = 0) -> Array:
    # An empty tensor of one axis joins with anything: a relic that models still use.
    parts = [x for x in _promoted(*tensors) if x.shape != (0,)]
    return jnp.concatenate(parts, dim) if parts else tensors[0]


@lowers("aten.roll.default")
def aten_roll_default(x: Array, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Array:
    if not dims:
        return jnp.roll(x, shifts[0])
    return jnp.roll(x, tuple(shifts), tuple(dims))


@lowers("aten.constant_pad_nd.default")
def aten_constant_pad_nd_default(x: Array, pad: tuple[int, ...], value: float = 0) -> Array:
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    config = [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


@lowers("aten.slice_backward.default")
def aten_slice_backward_default(
    grad_output: Array, input_sizes: tuple[int, ...], dim: int, start: int, end: int, step: int
) -> Array:
    axis = dim % len(input_sizes)
    length = input_sizes[axis]
    first, _ = _slice_bounds(length, start, end)
    count = grad_output.shape[axis]
    used = first + (count - 1) * step + 1 if count else first
    config = [(0, 0, 0)] * len(input_sizes)
    config[axis] = (first, length - used, step - 1)
    return lax.pad(grad_output, jnp.zeros((), grad_output.dtype), config)


@lowers("aten.select_backward.default")
def aten_select_backward_default(
    grad_output: Array, input_sizes: tuple[int, ...], dim: int, index: int
) -> Array:
    axis = dim % len(input_sizes)
    at = index % input_sizes[axis]
    config = [(0, 0, 0)] * len(input_sizes)
    config[axis] = (at, input_sizes[axis] - at - 1, 0)
    return lax.pad(jnp.expand_dims(grad_output, axis), jnp.zeros((), grad_output.dtype), config)


@lowers("aten.slice_scatter.default")
def aten_slice_scatter_default(
    x: Array,
    src: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    axis = dim % x.ndim
    first, last = _slice_bounds(x.shape[axis], start, end)
    where = (slice(None),) * axis + (slice(first, last, step),)
    return x.at[where].set(src)


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def aten_where_self(condition: Array, x: ArrayLike, other: ArrayLike) -> Array:
    first, second = _promoted(x, other)
    return jnp.where(condition, first, second)


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


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def aten_index_put_default(
    x: Array, indices: tuple[Array | None, ...], values: Array, accumulate: bool = False
) -> Array:
    at = x.at[_places(indices)]
    return at.add(values.astype(x.dtype)) if accumulate else at.set(values.astype(x.dtype))


@lowers("aten.index_add.default")
def aten_index_add_default(
    x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1
) -> Array:
    where = (slice(None),) * (dim % x.ndim) + (index,)
    return x.at[where].add((source * alpha).astype(x.dtype))


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


@lowers("aten.scatter_add.default")
def aten_scatter_add_default(x: Array, dim: int, index: Array, src: Array) -> Array:
    part = src[tuple(slice(0, n) for n in index.shape)]
    return x.at[_along(index, dim)].add(part)


@lowers("aten.topk.default")
def aten_topk_default(x: Array, k: int, dim: int = -1, largest: bool = True) -> tuple[Array, Array]:
    if not x.ndim:
        return x, jnp.zeros((), _dtype(jnp.int64))
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


def _block_diagonal(blocks: tuple[Array, ...]) -> Array:
    """The matrices, numbers and rows among them, along the diagonal of one."""
    flat = [jnp.atleast_2d(block) for block in blocks]
    rows, columns = (sum(block.shape[axis] for block in flat) for axis in (0, 1))
    made, row, column = jnp.zeros((rows, columns), flat[0].dtype), 0, 0
    for block in flat:
        made = made.at[row : row + block.shape[0], column : column + block.shape[1]].set(block)
        row, column = row + block.shape[0], column + block.shape[1]
    return made


def _gathered(
    x: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool
) -> Array:
    """`x` with the elements of `src` reduced into their places along a dimension."""
    at = _along(index, dim)
    given = src[tuple(slice(n) for n in index.shape)]
    start = {"sum": 0, "mean": 0, "prod": 1, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
    held = x if include_self else x.at[at].set(start)
    if reduce == "prod":
        return held.at[at].multiply(given)
    if reduce in ("amax", "amin"):
        return held.at[at].max(given) if reduce == "amax" else held.at[at].min(given)
    total = held.at[at].add(given)
    if reduce == "sum":
        return total
    ones = jnp.ones_like(x)
    counts = (ones if include_self else ones.at[at].set(0)).at[at].add(1)
    return total / jnp.where(counts == 0, 1, counts)


def _collected(values: Array, mask: Array, shape: tuple[int, ...]) -> Array:
    """The values under the mask, in order, and then zeros."""
    size = np.prod(shape, dtype=int).item()
    places = jnp.where(mask, jnp.cumsum(mask) - 1, size)
    made = jnp.zeros((max(size, values.size) + 1,), values.dtype)
    return made.at[places].set(jnp.where(mask, values, 0))[:size].reshape(shape)


def _placed(x: Array, dim: int, index: Array, value: ArrayLike) -> Array:
    """`x` with values in the places that the index names along a dimension."""
    moved = jnp.moveaxis(jnp.atleast_1d(x), dim, 0)
    if isinstance(value, Array):
        value = jnp.moveaxis(jnp.atleast_1d(value), dim, 0)
    return jnp.moveaxis(moved.at[index].set(value), 0, dim).reshape(x.shape)


def _scattered(x: Array, mask: Array, source: Array) -> Array:
    """`x` with the elements of the source, in order, where the mask is set."""
    x, mask = jnp.broadcast_arrays(x, mask)
    places = jnp.clip(jnp.cumsum(mask.ravel()) - 1, 0).reshape(x.shape)
    return jnp.where(mask, source.ravel()[places], x)


lowers_each(
    {
        "aten.alias.default aten.detach.default": lambda x: x,
        "aten.view.default aten._unsafe_view.default": lambda x, size: jnp.reshape(x, tuple(size)),
        "aten.reshape.default": lambda x, shape: jnp.reshape(x, tuple(shape)),
        "aten.view.dtype": lambda x, dtype: jnp.asarray(x.view(_dtype(dtype))),
        "aten.permute.default": lambda x, dims: jnp.transpose(x, tuple(dims)),
        "aten.t.default": lambda x: x.T,
        "aten.transpose.int": lambda x, dim0, dim1: jnp.swapaxes(x, dim0, dim1) if x.ndim else x,
        "aten.unsqueeze.default": lambda x, dim: jnp.expand_dims(x, dim),
        "aten.squeeze.default": lambda x: jnp.squeeze(x),
        "aten.squeeze.dim": lambda x, dim: _without_axes(x, (dim,)),
        "aten.squeeze.dims": lambda x, dim: _without_axes(x, tuple(dim)),
        "aten.select.int": lambda x, dim, index: lax.index_in_dim(
            x, index, dim % x.ndim, keepdims=False
        ),
        "aten.clone.default aten.lift_fresh_copy.default": lambda x: x,
        "aten._to_copy.default": lambda x, *, dtype=None: _in_dtype(x, dtype),
        "aten.copy.default": lambda x, src: jnp.broadcast_to(src, x.shape).astype(x.dtype),
        "aten.stack.default": lambda tensors, dim=0: jnp.stack(_promoted(*tensors), dim),
        "aten.repeat.default": lambda x, repeats: jnp.tile(x, tuple(repeats)),
        "aten.repeat_interleave.self_int": lambda x, repeats, dim=None: jnp.repeat(x, repeats, dim),
        "aten.flip.default": lambda x, dims: jnp.flip(x, tuple(dims)),
        "aten.tril.default": lambda x, diagonal=0: jnp.tril(x, diagonal),
        "aten.triu.default": lambda x, diagonal=0: jnp.triu(x, diagonal),
        "aten.select_scatter.default": lambda x, src, dim, index: x.at[
            (slice(None),) * (dim % x.ndim) + (index,)
        ].set(src),
        "aten.masked_fill.Scalar aten.masked_fill.Tensor": lambda x, mask, value: jnp.where(
            mask, jnp.asarray(value, x.dtype), x
        ),
        "aten.embedding.default": lambda weight, indices: jnp.take(weight, indices, axis=0),
        "aten.index.Tensor aten._unsafe_index.Tensor": lambda x, indices: x[_places(indices)],
        "aten.index_select.default": lambda x, dim, index: jnp.take(x, index, axis=dim),
        "aten.gather.default": lambda x, dim, index: x[_along(index, dim)],
        "aten.scatter.value": lambda x, dim, index, value: x.at[_along(index, dim)].set(
            jnp.asarray(value, x.dtype)
        ),
        "aten.alias_copy.default": lambda x: x,
        "aten.view_copy.default": lambda x, size: jnp.reshape(x, tuple(size)),
        "aten.permute_copy.default": lambda x, dims: jnp.transpose(x, tuple(dims)),
        "aten.expand_copy.default": lambda x, size: aten_expand_default(x, size),
        "aten.diagonal_copy.default": lambda x, offset=0, dim1=0, dim2=1: aten_diagonal_default(
            x, offset, dim1, dim2
        ),
        "aten.narrow_copy.default": lambda x, dim, start, length: aten_slice_Tensor(
            x, dim, start, start + length
        ),
        "aten.unsafe_split.Tensor": (
            lambda x, split_size, dim=0: aten_split_Tensor(x, split_size, dim)
        ),
        "aten.split_with_sizes_copy.default": (
            lambda x, split_sizes, dim=0: aten_split_with_sizes_default(x, split_sizes, dim)
        ),
        "aten.unbind_copy.int": lambda x, dim=0: aten_unbind_int(x, dim),
        "aten.unsqueeze_copy.default": lambda x, dim: jnp.expand_dims(x, dim),
        "aten.squeeze_copy.default": lambda x: jnp.squeeze(x),
        "aten.squeeze_copy.dim": lambda x, dim: _without_axes(x, (dim,)),
        "aten.t_copy.default": lambda x: x.T,
        "aten.transpose_copy.int": lambda x, dim0, dim1: (
            jnp.swapaxes(x, dim0, dim1) if x.ndim else x
        ),
        "aten.rot90.default": lambda x, k=1, dims=(0, 1): jnp.rot90(x, k, tuple(dims)),
        "aten.diagonal_scatter.default": lambda x, src, offset=0, dim1=0, dim2=1: jnp.where(
            aten_diagonal_backward_default(
                jnp.ones_like(src, dtype=bool), x.shape, offset, dim1, dim2
            ),
            aten_diagonal_backward_default(src, x.shape, offset, dim1, dim2),
            x,
        ),
        "aten.masked_scatter.default": lambda x, mask, source: _scattered(x, mask, source),
        "aten.block_diag.default": lambda tensors: _block_diagonal(tuple(_promoted(*tensors))),
        "aten.take.default": lambda x, index: x.ravel()[index],
        "aten.index_copy.default": lambda x, dim, index, source: _placed(x, dim, index, source),
        "aten.index_fill.int_Scalar": lambda x, dim, index, value: _placed(x, dim, index, value),
        "aten.put.default": lambda x, index, source, accumulate=False: (
            x.ravel().at[index.ravel()].add(source.ravel())
            if accumulate
            else x.ravel().at[index.ravel()].set(source.ravel())
        ).reshape(x.shape),
        "aten.channel_shuffle.default": lambda x, groups: jnp.swapaxes(
            x.reshape(x.shape[0], groups, -1, *x.shape[2:]), 1, 2
        ).reshape(x.shape),
        "aten.masked_scatter_backward.default": lambda grad_output, mask, sizes: _collected(
            grad_output.ravel(), jnp.broadcast_to(mask, grad_output.shape).ravel(), tuple(sizes)
        ),
        "aten.scatter_reduce.two": lambda x, dim, index, src, reduce, *, include_self=True: (
            _gathered(x, dim, index, src, reduce, include_self)
        ),
    }
)
