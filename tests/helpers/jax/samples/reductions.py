"""Sample calls of reductions and softmax; see `calls`."""

from __future__ import annotations

import torch

from helpers.jax.samples.calls import Call, Make, add, all_dtypes, call

__all__: list[str] = []

# --- reductions ---------------------------------------------------------------------
add("sum.default", lambda m: [*all_dtypes(m), call(m.f(3, 4), dtype=torch.float64)])
add(
    "sum.dim_IntList",
    lambda m: [
        call(m.f(3, 4), [0]),
        call(m.f(3, 4), [-1], True),
        call(m.f(3, 4), None),
        call(m.f(3, 4), []),
        call(m.b(3, 4), [1]),
        call(m.i(9, 3, 4).int(), [0, 1]),
        call(m.f(3, 4), [1], dtype=torch.float64),
        call(m.f(), [0]),
    ],
)
add("mean.default", lambda m: [call(m.f(3, 4)), call(m.i(9, 4), dtype=torch.float32)])
add(
    "mean.dim",
    lambda m: [call(m.f(3, 4), [-1], True), call(m.f(2, 3, 4), [0, 2]), call(m.f(3, 4), None)],
)
add("prod.default", lambda m: [call(m.pos(5)), call(m.i(4, 5) + 1)])
add("prod.dim_int", lambda m: [call(m.pos(3, 4), 1), call(m.b(3, 4), -1, True)])
add(
    "var.correction std.correction var_mean.correction",
    lambda m: [
        call(m.f(3, 4), [1]),
        call(m.f(3, 4), None, correction=0),
        call(m.f(3, 4), [0], correction=2, keepdim=True),
    ],
)
add(
    "amax.default amin.default",
    lambda m: [call(m.f(3, 4)), call(m.f(3, 4), [1], True), call(m.i(9, 3, 4), [0, 1])],
)
add("max.default min.default", lambda m: [call(m.f(3, 4)), call(m.i(9, 5))])
add("max.dim min.dim", lambda m: [call(m.f(3, 4), 1), call(m.f(3, 4), 0, True)])
add(
    "argmax.default argmin.default",
    lambda m: [call(m.f(3, 4)), call(m.f(3, 4), 1), call(m.f(3, 4), 0, True)],
)
add("any.default all.default", lambda m: [call(m.b(3)), call(m.i(2, 3))])
add("any.dim all.dim", lambda m: [call(m.b(3, 2), 1), call(m.b(3, 2), 0, True)])
add("logsumexp.default", lambda m: [call(m.f(3, 4), [1]), call(m.f(3, 4) * 50, [0, 1], True)])
add(
    "cumsum.default",
    lambda m: [call(m.f(3, 4), 1), call(m.b(5), -1), call(m.i(5, 4).int(), 0), call(m.f(), 0)],
)
add("cumprod.default", lambda m: [call(m.pos(3, 4), 1), call(m.i(3, 4) + 1, -1)])
add("trace.default", lambda m: [call(m.f(3, 4)), call(m.i(9, 3, 3))])
add("norm.ScalarOpt_dim", lambda m: [call(m.f(3, 4), 2, [1]), call(m.f(3, 4), None, [0], True)])
add(
    "linalg_vector_norm.default",
    lambda m: [
        *(call(m.f(3, 4), p, [1]) for p in (2, 1, 3, 0, float("inf"), -float("inf"))),
        call(m.f(3, 4)),
        call(m.f(3, 4), 2, [0, 1], True, dtype=torch.float64),
    ],
)

# --- softmax ------------------------------------------------------------------------
add(
    "_softmax.default _log_softmax.default",
    lambda m: [call(m.f(3, 4) * 9, -1, False), call(m.f(3, 4), 0, False)],
)


def _safe_softmax(m: Make) -> list[Call]:
    masked = m.f(3, 4)
    masked[1] = -float("inf")
    masked[2, 1:] = -float("inf")
    return [call(masked, -1), call(m.f(3, 4), 0, torch.float64)]


add("_safe_softmax.default", _safe_softmax)
add(
    "_softmax_backward_data.default",
    lambda m: [call(m.f(3, 4), m.f(3, 4).softmax(d), d, m.dtype) for d in (0, -1)],
)
add(
    "_log_softmax_backward_data.default",
    lambda m: [call(m.f(3, 4), m.f(3, 4).log_softmax(d), d, m.dtype) for d in (0, -1)],
)
