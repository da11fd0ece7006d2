"""Arithmetic, comparisons and functions, element by element, with PyTorch's promotion."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ._dtypes import _floating, _promoted, _promoted_dtype, _rank, _wide
from ._registry import lowers, lowers_each


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


@lowers("aten.pow.Tensor_Scalar")
def aten_pow_Tensor_Scalar(x: Array, exponent: float) -> Array:
    dtype = _promoted_dtype(x, exponent)
    if exponent == 1:
        return x.astype(dtype)
    if float(exponent).is_integer() and (abs(exponent) <= 3 or _rank(dtype) < 2):
        return lax.integer_pow(x.astype(dtype), int(exponent))
    wide = _wide(x.astype(dtype))
    return jnp.power(wide, jnp.asarray(exponent, wide.dtype)).astype(dtype)


@lowers("aten.atan2.default")
def aten_atan2_default(x: Array, other: Array) -> Array:
    x, other = _promoted(x, other)
    return jnp.arctan2(_floating(x), _floating(other))


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


def _clamped(x: Array, low: ArrayLike | None, high: ArrayLike | None) -> Array:
    """`x` within the bounds, all in their common dtype."""
    x, *_ = _promoted(x, *(bound for bound in (low, high) if bound is not None))
    if low is not None:
        x = jnp.maximum(x, jnp.asarray(low, x.dtype))
    return x if high is None else jnp.minimum(x, jnp.asarray(high, x.dtype))


@lowers("aten.polygamma.default")
def aten_polygamma_default(n: int, x: Array) -> Array:
    """Below 1/2 by reflection: XLA's zeta function is wrong there."""
    if n > 1:
        raise ValueError("polygamma is known for n = 0 and 1")
    if n == 0:
        return lax.digamma(x)
    sine = jnp.sin(np.pi * (x - jnp.round(x)))
    two = jnp.full_like(x, 2)
    mirrored = (np.pi / sine) ** 2 - lax.zeta(two, jnp.where(x < 0.5, 1 - x, 1))
    return jnp.where(x < 0.5, mirrored, lax.zeta(two, jnp.where(x < 0.5, 1, x)))


lowers_each(
    {
        "aten.add.Tensor": lambda x, other, *, alpha=1: _added(x, other, alpha),
        "aten.add.Scalar": lambda x, other, alpha=1: _added(x, other, alpha),
        "aten.sub.Tensor": lambda x, other, *, alpha=1: _added(x, other, -alpha),
        "aten.sub.Scalar": lambda x, other, alpha=1: _added(x, other, -alpha),
        "aten.rsub.Scalar": lambda x, other, alpha=1: _added(other, x, -alpha),
        "aten.rsub.Tensor": lambda x, other, *, alpha=1: _added(other, x, -alpha),
        "aten.div.Tensor aten.div.Scalar": lambda x, other: _divided(x, other, None),
        "aten.div.Tensor_mode aten.div.Scalar_mode": lambda x, other, *, rounding_mode: _divided(
            x, other, rounding_mode
        ),
        "aten.floor_divide.default": lambda x, other: _divided(x, other, "floor"),
        "aten.remainder.Tensor aten.remainder.Scalar": lambda x, other: jnp.remainder(
            *_promoted(x, other)
        ),
        "aten.fmod.Tensor aten.fmod.Scalar": lambda x, other: jnp.fmod(*_promoted(x, other)),
        "aten.pow.Tensor_Tensor aten.pow.Scalar": lambda x, exponent: jnp.power(
            *_promoted(x, exponent)
        ),
        "aten.maximum.default": lambda x, other: jnp.maximum(*_promoted(x, other)),
        "aten.minimum.default": lambda x, other: jnp.minimum(*_promoted(x, other)),
        "aten.lerp.Scalar": lambda x, end, weight: x + (end - x) * weight,
        "aten.eq.Tensor aten.eq.Scalar": lambda x, other: jnp.equal(*_promoted(x, other)),
        "aten.ne.Tensor aten.ne.Scalar": lambda x, other: jnp.not_equal(*_promoted(x, other)),
        "aten.lt.Tensor aten.lt.Scalar": lambda x, other: jnp.less(*_promoted(x, other)),
        "aten.le.Tensor aten.le.Scalar": lambda x, other: jnp.less_equal(*_promoted(x, other)),
        "aten.gt.Tensor aten.gt.Scalar": lambda x, other: jnp.greater(*_promoted(x, other)),
        "aten.ge.Tensor aten.ge.Scalar": lambda x, other: jnp.greater_equal(*_promoted(x, other)),
        "aten.bitwise_and.Tensor aten.bitwise_and.Scalar": lambda x, other: jnp.bitwise_and(
            *_promoted(x, other)
        ),
        "aten.bitwise_or.Tensor aten.bitwise_or.Scalar": lambda x, other: jnp.bitwise_or(
            *_promoted(x, other)
        ),
        "aten.bitwise_xor.Tensor aten.bitwise_xor.Scalar": lambda x, other: jnp.bitwise_xor(
            *_promoted(x, other)
        ),
        "aten.bitwise_not.default": lambda x: ~x,
        "aten.logical_and.default": lambda x, other: jnp.logical_and(x, other),
        "aten.logical_or.default": lambda x, other: jnp.logical_or(x, other),
        "aten.logical_xor.default": lambda x, other: jnp.logical_xor(x, other),
        "aten.logical_not.default": lambda x: jnp.logical_not(x),
        "aten.isnan.default": lambda x: jnp.isnan(x),
        "aten.isinf.default": lambda x: jnp.isinf(x),
        "aten.abs.default": lambda x: jnp.abs(x),
        "aten.neg.default": lambda x: -x,
        "aten.sign.default aten.sgn.default": lambda x: jnp.sign(x),
        "aten.floor.default": lambda x: jnp.floor(x).astype(x.dtype),
        "aten.ceil.default": lambda x: jnp.ceil(x).astype(x.dtype),
        "aten.round.default": lambda x: jnp.round(x),
        "aten.trunc.default": lambda x: jnp.trunc(x).astype(x.dtype),
        "aten.square.default": lambda x: x * x,
        "aten.exp.default": lambda x: jnp.exp(_floating(x)),
        "aten.exp2.default": lambda x: jnp.exp2(_floating(x)),
        "aten.expm1.default": lambda x: jnp.expm1(_floating(x)),
        "aten.log.default": lambda x: jnp.log(_floating(x)),
        "aten.log2.default": lambda x: jnp.log2(_floating(x)),
        "aten.log10.default": lambda x: jnp.log10(_floating(x)),
        "aten.log1p.default": lambda x: jnp.log1p(_floating(x)),
        "aten.sqrt.default": lambda x: jnp.sqrt(_floating(x)),
        "aten.rsqrt.default": lambda x: lax.rsqrt(_floating(x)),
        "aten.reciprocal.default": lambda x: 1 / _floating(x),
        "aten.sin.default": lambda x: jnp.sin(_floating(x)),
        "aten.cos.default": lambda x: jnp.cos(_floating(x)),
        "aten.tan.default": lambda x: jnp.tan(_floating(x)),
        "aten.asin.default": lambda x: jnp.arcsin(_floating(x)),
        "aten.acos.default": lambda x: jnp.arccos(_floating(x)),
        "aten.atan.default": lambda x: jnp.arctan(_floating(x)),
        "aten.sinh.default": lambda x: jnp.sinh(_floating(x)),
        "aten.cosh.default": lambda x: jnp.cosh(_floating(x)),
        "aten.tanh.default": lambda x: jnp.tanh(_floating(x)),
        "aten.erf.default": lambda x: lax.erf(_floating(x)),
        "aten.erfc.default": lambda x: lax.erfc(_floating(x)),
        "aten.clamp.default aten.clamp.Tensor": lambda x, min=None, max=None: _clamped(x, min, max),
        "aten.clamp_min.default aten.clamp_min.Tensor": lambda x, min: _clamped(x, min, None),
        "aten.clamp_max.default aten.clamp_max.Tensor": lambda x, max: _clamped(x, None, max),
        "aten.fill.Scalar": lambda x, value: jnp.full(x.shape, value, x.dtype),
        "aten.acosh.default": lambda x: jnp.arccosh(_floating(x)),
        "aten.asinh.default": lambda x: jnp.arcsinh(_floating(x)),
        "aten.atanh.default": lambda x: jnp.arctanh(_floating(x)),
        "aten.deg2rad.default": lambda x: jnp.deg2rad(_floating(x)),
        "aten.rad2deg.default": lambda x: jnp.rad2deg(_floating(x)),
        "aten.frac.default": lambda x: x - jnp.trunc(x),
        "aten.sinc.default": lambda x: jnp.sinc(_floating(x)),
        "aten.copysign.Tensor": lambda x, other: jnp.copysign(*map(_floating, _promoted(x, other))),
        "aten.nextafter.default": lambda x, other: jnp.nextafter(*_promoted(x, other)),
        "aten.fmax.default": lambda x, other: jnp.fmax(*_promoted(x, other)),
        "aten.fmin.default": lambda x, other: jnp.fmin(*_promoted(x, other)),
        "aten.hypot.default": lambda x, other: jnp.hypot(*_promoted(x, other)),
        "aten.logaddexp.default": lambda x, other: jnp.logaddexp(*_promoted(x, other)),
        "aten.logaddexp2.default": lambda x, other: jnp.logaddexp2(*_promoted(x, other)),
        "aten.ldexp.Tensor": lambda x, other: _floating(x) * jnp.exp2(_floating(other)),
        "aten.frexp.Tensor": lambda x: tuple(jnp.frexp(x)),
        "aten.round.decimals": lambda x, *, decimals: jnp.round(x, decimals),
        "aten.nan_to_num.default": lambda x, nan=None, posinf=None, neginf=None: jnp.nan_to_num(
            x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf
        ),
        "aten.lerp.Tensor": lambda x, end, weight: x + (end - x) * weight,
        "aten.digamma.default": lambda x: lax.digamma(_floating(x)),
        "aten.lgamma.default": lambda x: lax.lgamma(_floating(x)),
        "aten.erfinv.default": lambda x: lax.erf_inv(_floating(x)),
        "aten.i0.default": lambda x: lax.bessel_i0e(_floating(x)) * jnp.exp(jnp.abs(_floating(x))),
        "aten.special_i0e.default": lambda x: lax.bessel_i0e(_floating(x)),
        "aten.special_i1e.default": lambda x: lax.bessel_i1e(_floating(x)),
        "aten.special_i1.default": lambda x: (
            lax.bessel_i1e(_floating(x)) * jnp.exp(jnp.abs(_floating(x)))
        ),
        "aten.special_entr.default": lambda x: jnp.where(
            x > 0, -x * jnp.log(jnp.where(x > 0, x, 1)), jnp.where(x == 0, 0, -jnp.inf)
        ),
        "aten.special_ndtri.default": lambda x: np.sqrt(2) * lax.erf_inv(2 * _floating(x) - 1),
        "aten.special_xlog1py.default": lambda x, other: jnp.where(x == 0, 0, x * jnp.log1p(other)),
        "aten.angle.default": lambda x: jnp.where(
            jnp.isnan(x), x, jnp.where(x < 0, np.pi, 0).astype(x.dtype)
        ),
        "aten.signbit.default": lambda x: jnp.signbit(x),
        "aten.isposinf.default": lambda x: jnp.isposinf(x),
        "aten.isneginf.default": lambda x: jnp.isneginf(x),
        "aten.mvlgamma.default": lambda x, p: sum(
            (lax.lgamma(_wide(x) - i / 2) for i in range(p)), p * (p - 1) / 4 * np.log(np.pi)
        ).astype(x.dtype),
        "aten.special_log_ndtr.default": lambda x: jax.scipy.special.log_ndtr(_floating(x)),
    }
)
