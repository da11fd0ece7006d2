"""Matrix products and attention."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

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


def _cholesky(x: Array, upper: bool) -> Array:
    """The factor of a symmetric matrix, of which one triangle is read."""
    lower = lax.linalg.cholesky(jnp.swapaxes(x, -1, -2) if upper else x, symmetrize_input=False)
    lower = jnp.tril(lower)
    return jnp.swapaxes(lower, -1, -2) if upper else lower


def _solved(A: Array, B: Array, upper: bool, left: bool, unitriangular: bool) -> Array:
    """The solution of A X = B, or of X A = B if not `left`, for a triangular A."""
    shape = jnp.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A, B = (jnp.broadcast_to(m, (*shape, *m.shape[-2:])) for m in (A, B))
    made: Array = lax.linalg.triangular_solve(
        A, B, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )
    return made


def _cholesky_solved(x: Array, factor: Array, upper: bool) -> Array:
    lower = jnp.swapaxes(factor, -1, -2) if upper else factor
    half = _solved(lower, x, False, True, False)
    return _solved(jnp.swapaxes(lower, -1, -2), half, True, True, False)


def _trilinear(
    factors: tuple[Array, ...], expands: tuple[tuple[int, ...], ...], summed: tuple[int, ...]
) -> Array:
    """The product of three, each with new dimensions of length 1, summed over some."""
    first, second, third = (
        jnp.expand_dims(x, tuple(dims)) for x, dims in zip(factors, expands, strict=True)
    )
    return (first * second * third).sum(tuple(summed))


def _lu(A: Array) -> tuple[Array, Array]:
    """The factors in one matrix, and the rows exchanged, counted from 1."""
    factors, pivots, _ = lax.linalg.lu(A)
    return factors, pivots + 1


def _permutation(pivots: Array, rows: int) -> Array:
    made: Array = lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)
    return made


def _unpacked(factors: Array, pivots: Array) -> tuple[Array, Array, Array]:
    """P, L and U of the packed factors."""
    rows, columns = factors.shape[-2:]
    least = min(rows, columns)
    order = _permutation(pivots, rows)
    permuted = jnp.swapaxes(jnp.eye(rows, dtype=factors.dtype)[order], -1, -2)
    lower = jnp.tril(factors[..., :least], -1) + jnp.eye(rows, least, dtype=factors.dtype)
    return permuted, lower, jnp.triu(factors[..., :least, :])


def _lu_solved(LU: Array, pivots: Array, B: Array, left: bool, adjoint: bool) -> Array:
    """X of A X = B (X A = B if not `left`), of the transpose of A if `adjoint`."""
    order = _permutation(pivots, LU.shape[-1])
    vector = B.ndim == LU.ndim - 1 and B.shape == LU.shape[:-1]
    B = B[..., None] if vector else B
    shape = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    B = jnp.broadcast_to(B, (*shape, *B.shape[-2:]))
    order = jnp.broadcast_to(order, (*shape, order.shape[-1]))
    B = B if left else jnp.swapaxes(B, -1, -2)
    if left == adjoint:
        half = _solved(jnp.swapaxes(LU, -1, -2), B, False, True, False)
        half = _solved(jnp.swapaxes(LU, -1, -2), half, True, True, True)
        made = jnp.take_along_axis(half, jnp.argsort(order, -1)[..., None], -2)
    else:
        half = _solved(LU, jnp.take_along_axis(B, order[..., None], -2), False, True, True)
        made = _solved(LU, half, True, True, False)
    made = made if left else jnp.swapaxes(made, -1, -2)
    return made[..., 0] if vector else made


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
        "aten.addmv.default": lambda x, mat, vec, *, beta=1, alpha=1: _scaled_sum(
            x, jnp.matmul(mat, vec), beta, alpha
        ),
        "aten.addbmm.default": lambda x, batch1, batch2, *, beta=1, alpha=1: _scaled_sum(
            x, jnp.matmul(batch1, batch2).sum(0), beta, alpha
        ),
        "aten.addr.default": lambda x, vec1, vec2, *, beta=1, alpha=1: _scaled_sum(
            x, jnp.outer(vec1, vec2), beta, alpha
        ),
        "aten.linalg_cross.default": lambda x, other, *, dim=-1: jnp.cross(x, other, axis=dim),
        "aten._trilinear.default": (
            lambda i1, i2, i3, expand1, expand2, expand3, sumdim: _trilinear(
                (i1, i2, i3), (expand1, expand2, expand3), sumdim
            )
        ),
        "aten.cholesky.default": lambda x, upper=False: _cholesky(x, upper),
        "aten.linalg_cholesky_ex.default": lambda x, *, upper=False: (
            _cholesky(x, upper),
            jnp.zeros(x.shape[:-2], jnp.int32),
        ),
        "aten.cholesky_inverse.default": lambda x, upper=False: _cholesky_solved(
            jnp.eye(x.shape[-1], dtype=x.dtype), x, upper
        ),
        "aten.cholesky_solve.default": lambda x, input2, upper=False: _cholesky_solved(
            x, input2, upper
        ),
        "aten.linalg_solve_triangular.default": (
            lambda x, B, *, upper, left=True, unitriangular=False: _solved(
                x, B, upper, left, unitriangular
            )
        ),
        "aten.triangular_solve.default": (
            lambda x, A, upper=True, transpose=False, unitriangular=False: (
                _solved(
                    jnp.swapaxes(A, -1, -2) if transpose else A,
                    x,
                    upper != transpose,
                    True,
                    unitriangular,
                ),
                A,
            )
        ),
        "aten.linalg_inv_ex.default": lambda A: (
            jnp.linalg.inv(A),
            jnp.zeros(A.shape[:-2], jnp.int32),
        ),
        "aten.linalg_lu_factor_ex.default": lambda A: (
            *_lu(A),
            jnp.zeros(A.shape[:-2], jnp.int32),
        ),
        "aten.linalg_lu.default": lambda A: _unpacked(*_lu(A)),
        "aten.lu_unpack.default": lambda LU_data, LU_pivots: _unpacked(LU_data, LU_pivots),
        "aten.linalg_lu_solve.default": lambda LU, pivots, B, *, left=True, adjoint=False: (
            _lu_solved(LU, pivots, B, left, adjoint)
        ),
        "aten._linalg_solve_ex.default": lambda A, B, *, left=True: (
            _lu_solved(*_lu(A), B, left, False),
            *_lu(A),
            jnp.zeros(A.shape[:-2], jnp.int32),
        ),
        "aten._linalg_svd.default": lambda A, full_matrices=False, compute_uv=True: (
            tuple(jnp.linalg.svd(A, full_matrices))
            if compute_uv
            else (A[:0], jnp.linalg.svd(A, compute_uv=False), A[:0])
        ),
        "aten.linalg_qr.default": lambda A, mode="reduced": (
            (A[:0], jnp.linalg.qr(A, "r")) if mode == "r" else tuple(jnp.linalg.qr(A, mode))
        ),
    }
)
