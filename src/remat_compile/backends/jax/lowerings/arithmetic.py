"""Arithmetic of two operands, with PyTorch's promotion."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ._dtypes import _floating, _promoted, _promoted_dtype, _rank, _wide
from ._registry import lowers


def _operands(x: ArrayLike, other: ArrayLike) -> tuple[Array, Array]:
    """The operands in their common dtype, Python numbers behind a barrier.

    XLA makes one product (or sum) of two with constants. PyTorch rounds after each, and of
    one of the two operators no trace would be left.
    """
    first, second = _promoted(x, other)
    if isinstance(x, int | float):
        first = _unseen(first)
    if isinstance(other, int | float):
        second = _unseen(second)
    return first, second


def _unseen(x: Array) -> Array:
    """The same, as a constant that XLA does not look into."""
    kept: Array = lax.optimization_barrier(x)  # type: ignore[no-untyped-call]
    return kept


def _added(x: ArrayLike, other: ArrayLike, alpha: float) -> Array:
    """x + alpha * other."""
    x, other = _operands(x, other)
    if alpha == 1:
        return x + other
    return (_wide(x) + _wide(other) * alpha).astype(x.dtype)


@lowers("aten.add.Tensor")
def aten_add_Tensor(x: Array, other: ArrayLike, *, alpha: float = 1) -> Array:
    return _added(x, other, alpha)


@lowers("aten.add.Scalar")
def aten_add_Scalar(x: Array, other: float, alpha: float = 1) -> Array:
    return _added(x, other, alpha)


@lowers("aten.sub.Tensor")
def aten_sub_Tensor(x: Array, other: ArrayLike, *, alpha: float = 1) -> Array:
    return _added(x, other, -alpha)


@lowers("aten.sub.Scalar")
def aten_sub_Scalar(x: Array, other: float, alpha: float = 1) -> Array:
    return _added(x, other, -alpha)


@lowers("aten.rsub.Scalar")
def aten_rsub_Scalar(x: Array, other: float, alpha: float = 1) -> Array:
    return _added(other, x, -alpha)


@lowers("aten.rsub.Tensor")
def aten_rsub_Tensor(x: Array, other: Array, *, alpha: float = 1) -> Array:
    return _added(other, x, -alpha)


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def aten_mul_Tensor(x: Array, other: ArrayLike) -> Array:
    """x * other; of two bool, their conjunction."""
    x, other = _operands(x, other)
    return x * other


def _divided(x: ArrayLike, other: ArrayLike, rounding_mode: str | None) -> Array:
    """x / other: true division gives floats; `floor` and `trunc` keep integers."""
    x, other = _operands(x, other)
    if rounding_mode is None:
        return _floating(x) / _floating(other)
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    return lax.div(x, other) if _rank(x.dtype) < 2 else jnp.trunc(x / other)


@lowers("aten.div.Tensor", "aten.div.Scalar")
def aten_div_Tensor(x: Array, other: ArrayLike) -> Array:
    return _divided(x, other, None)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def aten_div_Tensor_mode(x: Array, other: ArrayLike, *, rounding_mode: str | None) -> Array:
    return _divided(x, other, rounding_mode)


@lowers("aten.floor_divide.default")
def aten_floor_divide_default(x: Array, other: ArrayLike) -> Array:
    return _divided(x, other, "floor")


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar")
def aten_remainder_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.remainder(*_promoted(x, other))


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar")
def aten_fmod_Tensor(x: Array, other: ArrayLike) -> Array:
    return jnp.fmod(*_promoted(x, other))


@lowers("aten.pow.Tensor_Scalar")
def aten_pow_Tensor_Scalar(x: Array, exponent: float) -> Array:
    dtype = _promoted_dtype(x, exponent)
    if exponent == 1:
        return x.astype(dtype)
    if float(exponent).is_integer() and (abs(exponent) <= 3 or _rank(dtype) < 2):
        return lax.integer_pow(x.astype(dtype), int(exponent))
    wide = _wide(x.astype(dtype))
    return jnp.power(wide, jnp.asarray(exponent, wide.dtype)).astype(dtype)


@lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def aten_pow_Tensor_Tensor(x: ArrayLike, exponent: ArrayLike) -> Array:
    return jnp.power(*_promoted(x, exponent))


@lowers("aten.maximum.default")
def aten_maximum_default(x: Array, other: Array) -> Array:
    return jnp.maximum(*_promoted(x, other))


@lowers("aten.minimum.default")
def aten_minimum_default(x: Array, other: Array) -> Array:
    return jnp.minimum(*_promoted(x, other))


@lowers("aten.atan2.default")
def aten_atan2_default(x: Array, other: Array) -> Array:
    x, other = _promoted(x, other)
    return jnp.arctan2(_floating(x), _floating(other))


@lowers("aten.lerp.Scalar")
def aten_lerp_Scalar(x: Array, end: Array, weight: float) -> Array:
    return x + (end - x) * weight


@lowers("aten.addcmul.default")
def aten_addcmul_default(x: Array, tensor1: Array, tensor2: Array, *, value: float = 1) -> Array:
    x, first, second = _promoted(x, tensor1, tensor2)
    return (_wide(x) + value * _wide(first) * _wide(second)).astype(x.dtype)


@lowers("aten.addcdiv.default")
def aten_addcdiv_default(x: Array, tensor1: Array, tensor2: Array, *, value: float = 1) -> Array:
    x, first, second = _promoted(x, tensor1, tensor2)
    return (_wide(x) + value * _wide(first) / _wide(second)).astype(x.dtype)


@lowers("aten.xlogy.Tensor")
def aten_xlogy_Tensor(x: Array, other: Array) -> Array:
    x, other = _promoted(x, other)
    first, second = _floating(x), _floating(other)
    return jnp.where((first == 0) & ~jnp.isnan(second), 0, first * jnp.log(second))
