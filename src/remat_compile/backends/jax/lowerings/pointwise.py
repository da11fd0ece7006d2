"""Functions of one array, element by element."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ._dtypes import _floating, _promoted
from ._registry import lowers


@lowers("aten.abs.default")
def aten_abs_default(x: Array) -> Array:
    return jnp.abs(x)


@lowers("aten.neg.default")
def aten_neg_default(x: Array) -> Array:
    return -x


@lowers("aten.sign.default", "aten.sgn.default")
def aten_sign_default(x: Array) -> Array:
    return jnp.sign(x)


@lowers("aten.floor.default")
def aten_floor_default(x: Array) -> Array:
    return jnp.floor(x).astype(x.dtype)


@lowers("aten.ceil.default")
def aten_ceil_default(x: Array) -> Array:
    return jnp.ceil(x).astype(x.dtype)


@lowers("aten.round.default")
def aten_round_default(x: Array) -> Array:
    return jnp.round(x)


@lowers("aten.trunc.default")
def aten_trunc_default(x: Array) -> Array:
    return jnp.trunc(x).astype(x.dtype)


@lowers("aten.square.default")
def aten_square_default(x: Array) -> Array:
    return x * x


@lowers("aten.exp.default")
def aten_exp_default(x: Array) -> Array:
    return jnp.exp(_floating(x))


@lowers("aten.exp2.default")
def aten_exp2_default(x: Array) -> Array:
    return jnp.exp2(_floating(x))


@lowers("aten.expm1.default")
def aten_expm1_default(x: Array) -> Array:
    return jnp.expm1(_floating(x))


@lowers("aten.log.default")
def aten_log_default(x: Array) -> Array:
    return jnp.log(_floating(x))


@lowers("aten.log2.default")
def aten_log2_default(x: Array) -> Array:
    return jnp.log2(_floating(x))


@lowers("aten.log10.default")
def aten_log10_default(x: Array) -> Array:
    return jnp.log10(_floating(x))


@lowers("aten.log1p.default")
def aten_log1p_default(x: Array) -> Array:
    return jnp.log1p(_floating(x))


@lowers("aten.sqrt.default")
def aten_sqrt_default(x: Array) -> Array:
    return jnp.sqrt(_floating(x))


@lowers("aten.rsqrt.default")
def aten_rsqrt_default(x: Array) -> Array:
    return lax.rsqrt(_floating(x))


@lowers("aten.reciprocal.default")
def aten_reciprocal_default(x: Array) -> Array:
    return 1 / _floating(x)


@lowers("aten.sin.default")
def aten_sin_default(x: Array) -> Array:
    return jnp.sin(_floating(x))


@lowers("aten.cos.default")
def aten_cos_default(x: Array) -> Array:
    return jnp.cos(_floating(x))


@lowers("aten.tan.default")
def aten_tan_default(x: Array) -> Array:
    return jnp.tan(_floating(x))


@lowers("aten.asin.default")
def aten_asin_default(x: Array) -> Array:
    return jnp.arcsin(_floating(x))


@lowers("aten.acos.default")
def aten_acos_default(x: Array) -> Array:
    return jnp.arccos(_floating(x))


@lowers("aten.atan.default")
def aten_atan_default(x: Array) -> Array:
    return jnp.arctan(_floating(x))


@lowers("aten.sinh.default")
def aten_sinh_default(x: Array) -> Array:
    return jnp.sinh(_floating(x))


@lowers("aten.cosh.default")
def aten_cosh_default(x: Array) -> Array:
    return jnp.cosh(_floating(x))


@lowers("aten.tanh.default")
def aten_tanh_default(x: Array) -> Array:
    return jnp.tanh(_floating(x))


@lowers("aten.erf.default")
def aten_erf_default(x: Array) -> Array:
    return lax.erf(_floating(x))


@lowers("aten.erfc.default")
def aten_erfc_default(x: Array) -> Array:
    return lax.erfc(_floating(x))


@lowers("aten.clamp.default", "aten.clamp.Tensor")
def aten_clamp_default(
    x: Array, min: ArrayLike | None = None, max: ArrayLike | None = None
) -> Array:
    return _clamped(x, min, max)


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def aten_clamp_min_default(x: Array, min: ArrayLike) -> Array:
    return _clamped(x, min, None)


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def aten_clamp_max_default(x: Array, max: ArrayLike) -> Array:
    return _clamped(x, None, max)


def _clamped(x: Array, low: ArrayLike | None, high: ArrayLike | None) -> Array:
    """`x` within the bounds, all in their common dtype."""
    x, *_ = _promoted(x, *(bound for bound in (low, high) if bound is not None))
    if low is not None:
        x = jnp.maximum(x, jnp.asarray(low, x.dtype))
    return x if high is None else jnp.minimum(x, jnp.asarray(high, x.dtype))


@lowers("aten.fill.Scalar")
def aten_fill_Scalar(x: Array, value: float) -> Array:
    return jnp.full(x.shape, value, x.dtype)
