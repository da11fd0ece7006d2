"""Comparisons and logic."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._dtypes import _promoted
from ._registry import lowers


@lowers("aten.eq.Tensor", "aten.eq.Scalar")
def aten_eq_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.equal(*_promoted(x, other))


@lowers("aten.ne.Tensor", "aten.ne.Scalar")
def aten_ne_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.not_equal(*_promoted(x, other))


@lowers("aten.lt.Tensor", "aten.lt.Scalar")
def aten_lt_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.less(*_promoted(x, other))


@lowers("aten.le.Tensor", "aten.le.Scalar")
def aten_le_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.less_equal(*_promoted(x, other))


@lowers("aten.gt.Tensor", "aten.gt.Scalar")
def aten_gt_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.greater(*_promoted(x, other))


@lowers("aten.ge.Tensor", "aten.ge.Scalar")
def aten_ge_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.greater_equal(*_promoted(x, other))


@lowers("aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar")
def aten_bitwise_and_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.bitwise_and(*_promoted(x, other))


@lowers("aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar")
def aten_bitwise_or_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.bitwise_or(*_promoted(x, other))


@lowers("aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar")
def aten_bitwise_xor_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.bitwise_xor(*_promoted(x, other))


@lowers("aten.bitwise_not.default")
def aten_bitwise_not_default(x: Array) -> Array:
    return ~x


@lowers("aten.logical_and.default")
def aten_logical_and_default(x: Array, other: Array) -> Array:
    return jnp.logical_and(x, other)


@lowers("aten.logical_or.default")
def aten_logical_or_default(x: Array, other: Array) -> Array:
    return jnp.logical_or(x, other)


@lowers("aten.logical_xor.default")
def aten_logical_xor_default(x: Array, other: Array) -> Array:
    return jnp.logical_xor(x, other)


@lowers("aten.logical_not.default")
def aten_logical_not_default(x: Array) -> Array:
    return jnp.logical_not(x)


@lowers("aten.isnan.default")
def aten_isnan_default(x: Array) -> Array:
    return jnp.isnan(x)


@lowers("aten.isinf.default")
def aten_isinf_default(x: Array) -> Array:
    return jnp.isinf(x)
