"""PyTorch's rules for dtypes, where JAX has others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike


def _dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype as JAX has it here: 32 bits where 64 are switched off."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _rank(dtype: DTypeLike) -> int:
    """0 bool, 1 integers, 2 floating."""
    if jnp.issubdtype(dtype, jnp.floating):
        return 2
    return 0 if dtype == jnp.bool_ else 1


def _promoted_dtype(*operands: ArrayLike) -> np.dtype:
    """The dtype of an elementwise result, as PyTorch has it.

    Floating outranks integers, and these bool. Among equals, arrays with axes outrank
    arrays without, and these Python numbers.
    """
    tiers: tuple[list[np.dtype], ...] = ([], [], [])
    for x in operands:
        if isinstance(x, bool | int | float):
            plain = {bool: jnp.bool_, int: jnp.int64, float: jnp.float32}[type(x)]
            tiers[2].append(_dtype(plain))
        else:
            tiers[0 if jnp.ndim(x) else 1].append(_dtype(jnp.asarray(x).dtype))
    promoted: np.dtype | None = None
    for tier in tiers:
        if not tier:
            continue
        own = tier[0]
        for other in tier[1:]:
            own = jnp.promote_types(own, other)
        if promoted is None or _rank(own) > _rank(promoted):
            promoted = own
    assert promoted is not None
    return promoted


def _promoted(*operands: ArrayLike) -> tuple[Array, ...]:
    """The operands in their common dtype."""
    dtype = _promoted_dtype(*operands)
    return tuple(jnp.asarray(x, dtype) for x in operands)


def _floating(x: Array) -> Array:
    """Integers and bool as float32, as PyTorch's floating functions take them."""
    return x if _rank(x.dtype) == 2 else x.astype(jnp.float32)


def _wide(x: Array) -> Array:
    """Half precision as float32: PyTorch rounds once, at the end of an operator."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def _in_dtype(x: Array, dtype: DTypeLike | None) -> Array:
    """`x` in the dtype asked for, if one is."""
    return x if dtype is None else x.astype(_dtype(dtype))
