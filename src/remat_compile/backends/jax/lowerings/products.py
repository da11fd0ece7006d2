"""Matrix products and attention."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ._dtypes import _wide
from ._registry import lowers, lowers_each


def _scaled_sum(x: Array, product: Array, beta: float, alpha: float) -> Array:
    """beta * x + alpha * product; with beta = 0, `x` is not read, not even its NaN."""
    scaled = product if alpha == 1 else _wide(product) * alpha
    if beta == 0:
        return jnp.asarray(scaled, product.dtype)
    return jnp.asarray((x if beta == 1 else _wide(x) * beta) + scaled, product.dtype)


def _scores(
    query: Array, key: Array, is_causal: bool, attn_mask: Array | None, scale: float | None
) -> tuple[Array, float]:
    """Masked scores [..., L, S] in float32 or wider, and the scale used."""
    factor = scale if scale is not None else query.shape[-1] ** -0.5
    scores = jnp.matmul(_wide(query), jnp.swapaxes(_wide(key), -1, -2)) * factor
    if attn_mask is not None and attn_mask.dtype == jnp.bool_:
        scores = jnp.where(attn_mask, scores, -jnp.inf)
    elif attn_mask is not None:
        scores = scores + _wide(attn_mask)
    if is_causal:
        length, keys = scores.shape[-2:]
        seen = jnp.arange(length)[:, None] >= jnp.arange(keys)
        scores = jnp.where(seen, scores, -jnp.inf)
    return scores, factor


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default")
def aten__scaled_dot_product_flash_attention_for_cpu_default(
    query: Array,
    key: Array,
    value: Array,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    scores, _ = _scores(query, key, is_causal, attn_mask, scale)
    top = jnp.max(scores, -1, keepdims=True)
    # Where a row sees nothing, PyTorch gives zeros, for the logarithm too.
    blind = jnp.isneginf(top)
    weights = jnp.exp(scores - jnp.where(blind, 0, top))
    total = jnp.sum(weights, -1, keepdims=True)
    out = jnp.matmul(weights / jnp.where(blind, 1, total), _wide(value))
    logsumexp = jnp.where(blind, 0, top + jnp.log(jnp.where(blind, 1, total)))
    return out.astype(query.dtype), logsumexp[..., 0]


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def aten__scaled_dot_product_flash_attention_for_cpu_backward_default(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    is_causal: bool,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    scores, factor = _scores(query, key, is_causal, attn_mask, scale)
    g, weights = _wide(grad_out), jnp.exp(scores - logsumexp[..., None])
    grad_weights = jnp.matmul(g, jnp.swapaxes(_wide(value), -1, -2))
    row = jnp.sum(g * _wide(out), -1, keepdims=True)
    grad_scores = weights * (grad_weights - row) * factor
    grad_query = jnp.matmul(grad_scores, _wide(key))
    grad_key = jnp.matmul(jnp.swapaxes(grad_scores, -1, -2), _wide(query))
    grad_value = jnp.matmul(jnp.swapaxes(weights, -1, -2), g)
    return (
        grad_query.astype(query.dtype),
        grad_key.astype(key.dtype),
        grad_value.astype(value.dtype),
    )


lowers_each(
    {
        "aten.mm.default aten.bmm.default": lambda x, mat2: jnp.matmul(x, mat2),
        "aten.mv.default": lambda x, vec: jnp.matmul(x, vec),
        "aten.dot.default": lambda x, tensor: jnp.matmul(x, tensor),
        "aten.addmm.default": lambda x, mat1, mat2, *, beta=1, alpha=1: _scaled_sum(
            x, jnp.matmul(mat1, mat2), beta, alpha
        ),
        "aten.baddbmm.default": lambda x, batch1, batch2, *, beta=1, alpha=1: _scaled_sum(
            x, jnp.matmul(batch1, batch2), beta, alpha
        ),
        "aten.vdot.default": lambda x, other: jnp.matmul(x, other),
    }
)
