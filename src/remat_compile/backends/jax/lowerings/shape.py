"""Copies, joins and rearrangements that allocate."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ._dtypes import _in_dtype, _promoted
from ._registry import lowers
from .views import _slice_bounds


@lowers("aten.clone.default", "aten.lift_fresh_copy.default")
def aten_clone_default(x: Array) -> Array:
    return x


@lowers("aten._to_copy.default")
def aten__to_copy_default(x: Array, *, dtype: DTypeLike | None = None) -> Array:
    return _in_dtype(x, dtype)


@lowers("aten.copy.default")
def aten_copy_default(x: Array, src: Array) -> Array:
    return jnp.broadcast_to(src, x.shape).astype(x.dtype)


@lowers("aten.cat.default")
def aten_cat_default(tensors: tuple[Array, ...], dim: int = 0) -> Array:
    # An empty tensor of one axis joins with anything: a relic that models still use.
    parts = [x for x in _promoted(*tensors) if x.shape != (0,)]
    return jnp.concatenate(parts, dim) if parts else tensors[0]


@lowers("aten.stack.default")
def aten_stack_default(tensors: tuple[Array, ...], dim: int = 0) -> Array:
    return jnp.stack(_promoted(*tensors), dim)


@lowers("aten.repeat.default")
def aten_repeat_default(x: Array, repeats: tuple[int, ...]) -> Array:
    return jnp.tile(x, tuple(repeats))


@lowers("aten.repeat_interleave.self_int")
def aten_repeat_interleave_self_int(x: Array, repeats: int, dim: int | None = None) -> Array:
    return jnp.repeat(x, repeats, dim)


@lowers("aten.flip.default")
def aten_flip_default(x: Array, dims: tuple[int, ...]) -> Array:
    return jnp.flip(x, tuple(dims))


@lowers("aten.roll.default")
def aten_roll_default(x: Array, shifts: tuple[int, ...], dims: tuple[int, ...] = ()) -> Array:
    if not dims:
        return jnp.roll(x, shifts[0])
    return jnp.roll(x, tuple(shifts), tuple(dims))


@lowers("aten.tril.default")
def aten_tril_default(x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@lowers("aten.triu.default")
def aten_triu_default(x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


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


@lowers("aten.select_scatter.default")
def aten_select_scatter_default(x: Array, src: Array, dim: int, index: int) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(src)


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def aten_where_self(condition: Array, x: ArrayLike, other: ArrayLike) -> Array:
    first, second = _promoted(x, other)
    return jnp.where(condition, first, second)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def aten_masked_fill_Scalar(x: Array, mask: Array, value: ArrayLike) -> Array:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)
