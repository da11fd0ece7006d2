"""Matrix products."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ._dtypes import _wide
from ._registry import lowers


@lowers("aten.mm.default", "aten.bmm.default")
def aten_mm_default(x: Array, mat2: Array) -> Array:
    return jnp.matmul(x, mat2)


@lowers("aten.mv.default")
def aten_mv_default(x: Array, vec: Array) -> Array:
    return jnp.matmul(x, vec)


@lowers("aten.dot.default")
def aten_dot_default(x: Array, tensor: Array) -> Array:
    return jnp.matmul(x, tensor)


def _scaled_sum(x: Array, product: Array, beta: float, alpha: float) -> Array:
    """beta * x + alpha * product; with beta = 0, `x` is not read, not even its NaN."""
    scaled = product if alpha == 1 else _wide(product) * alpha
    if beta == 0:
        return jnp.asarray(scaled, product.dtype)
    return jnp.asarray((x if beta == 1 else _wide(x) * beta) + scaled, product.dtype)


@lowers("aten.addmm.default")
def aten_addmm_default(
    x: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    return _scaled_sum(x, jnp.matmul(mat1, mat2), beta, alpha)


@lowers("aten.baddbmm.default")
def aten_baddbmm_default(
    x: Array, batch1: Array, batch2: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    return _scaled_sum(x, jnp.matmul(batch1, batch2), beta, alpha)


@lowers("aten.vdot.default")
def aten_vdot_default(x: Array, other: Array) -> Array:
    return jnp.matmul(x, other)
