"""Sample calls of views and of operators that move elements; see `calls`."""

from __future__ import annotations

import torch

from helpers.jax.samples.calls import Call, Make, add, aten, call

__all__: list[str] = []

# --- views and shapes ------------------------------------------------------------------
add("alias.default detach.default t.default", lambda m: [call(m.f(3, 4))])
add(
    "clone.default",
    lambda m: [call(m.f(3, 4)), call(m.f(3), memory_format=torch.contiguous_format)],
)
add("lift_fresh_copy.default", lambda m: [call(m.f(3, 4))])
add(
    "view.default _unsafe_view.default reshape.default",
    lambda m: [call(m.f(2, 3, 4), [6, 4]), call(m.f(2, 3, 4), [-1, 2]), call(m.f(1), [])],
)
add("view.dtype", lambda m: [call(m.f(4).float(), torch.int32), call(m.i(9, 4), torch.float64)])
add(
    "expand.default",
    lambda m: [call(m.f(3, 1), [3, 4]), call(m.f(3, 1), [2, -1, 4]), call(m.f(), [2])],
)
add("permute.default", lambda m: [call(m.f(2, 3, 4), [2, 0, 1]), call(m.f(2, 3), [-1, 0])])
add("transpose.int", lambda m: [call(m.f(2, 3, 4), 1, -1), call(m.f(), 0, -1)])
add("unsqueeze.default", lambda m: [call(m.f(2, 3), 0), call(m.f(2, 3), -1), call(m.f(), 0)])
add("squeeze.default", lambda m: [call(m.f(1, 3, 1))])
add("squeeze.dim", lambda m: [call(m.f(1, 3, 1), -1), call(m.f(1, 3), 1), call(m.f(), 0)])
add("squeeze.dims", lambda m: [call(m.f(1, 3, 1), [0, -1]), call(m.f(1, 3), [0, 1])])
add("select.int", lambda m: [call(m.f(3, 4), 0, 1), call(m.f(3, 4), -1, -2)])
SLICES: list[tuple[int | None, ...]] = [
    (1, 1, 3),
    (-1, -3, 2**63 - 1),
    (0, None, None, 2),
    (1, -99, 99),
    (1, 3, 2),
    (0, 1, 9, 3),
]
add("slice.Tensor", lambda m: [call(m.f(5, 4), *given) for given in SLICES])


def _slice_backward(m: Make) -> list[Call]:
    calls = []
    for dim, start, end, *step in SLICES:
        given = (dim, start or 0, 2**63 - 1 if end is None else end, *(step or [1]))
        part = aten.slice.Tensor(m.f(5, 4), *given)
        calls.append(call(m.f(*part.shape), [5, 4], *given))
    return calls


add("slice_backward.default", _slice_backward)
add("select_backward.default", lambda m: [call(m.f(4), [3, 4], 0, -1), call(m.f(3), [3, 4], -1, 2)])
add("split.Tensor", lambda m: [call(m.f(5, 4), 2), call(m.f(5, 4), 2, -1)])
add("split_with_sizes.default", lambda m: [call(m.f(5, 4), [1, 3], -1), call(m.f(5), [2, 0, 3])])
add("unbind.int", lambda m: [call(m.f(3, 2)), call(m.f(3, 2), -1)])
add("diagonal.default", lambda m: [call(m.f(3, 4)), call(m.f(2, 3, 4), 1, 2, 1)])
add(
    "diagonal_backward.default",
    lambda m: [call(m.f(3), [3, 4], 1, 0, 1), call(m.f(4, 2), [2, 4, 3], -1, 2, 0)],
)
add("diag_embed.default", lambda m: [call(m.f(2, 3)), call(m.f(2, 3), 1, 0, -1), call(m.f(3), -2)])
add("unfold.default", lambda m: [call(m.f(3, 7), 1, 3, 2), call(m.f(7, 2), 0, 2, 2)])
add(
    "_to_copy.default",
    lambda m: [
        call(m.f(4) * 3, dtype=torch.int64),
        call(m.i(9, 4), dtype=m.dtype),
        call(m.b(4), dtype=torch.int64),
        call(m.f(4).round(), dtype=torch.bool),
        call(m.f(4), device=torch.device("cpu")),
        call(m.f(4), dtype=torch.float32),
    ],
)
add("copy.default", lambda m: [call(m.f(3, 4), m.i(9, 4)), call(m.i(9, 3), m.f(3) * 5)])
add(
    "cat.default",
    lambda m: [
        call([m.f(2, 3), m.f(4, 3)]),
        call([m.f(2, 3), m.f(2, 1)], -1),
        call([m.f(2), m.i(9, 2)]),
        call([m.f(0), m.f(2, 3)], 1),
    ],
)
add("stack.default", lambda m: [call([m.f(2, 3), m.f(2, 3)], -1), call([m.f(2), m.i(9, 2)])])
add("repeat.default", lambda m: [call(m.f(2, 3), [2, 1]), call(m.f(3), [2, 2])])
add("repeat_interleave.self_int", lambda m: [call(m.f(2, 3), 2, 1), call(m.f(2, 3), 2)])
add("flip.default", lambda m: [call(m.f(2, 3), [0, -1])])
add("roll.default", lambda m: [call(m.f(2, 3), [1, -1], [0, 1]), call(m.f(2, 3), [2])])
add(
    "tril.default triu.default",
    lambda m: [call(m.f(3, 4)), call(m.b(3, 3), 1), call(m.f(2, 3, 3), -1)],
)
add(
    "constant_pad_nd.default",
    lambda m: [
        call(m.f(2, 3), [1, 2]),
        call(m.f(2, 3), [1, -1, 0, 2], 1.5),
        call(m.i(9, 2), [1, 0]),
    ],
)
add(
    "slice_scatter.default",
    lambda m: [call(m.f(5, 4), m.f(2, 4), 0, 1, 3), call(m.f(5), m.f(3), 0, None, None, 2)],
)
add("select_scatter.default", lambda m: [call(m.f(3, 4), m.f(3), 1, -1)])
add(
    "where.self",
    lambda m: [
        call(m.b(3, 1), m.f(4), m.f(3, 4)),
        call(m.b(4), m.f(4), m.f().double()),
        call(m.b(4), m.i(9, 4), m.f(4)),
        call(m.b(4), m.i(9, 4), m.i(9, 4)),
    ],
)
add("where.ScalarSelf", lambda m: [call(m.b(4), 1.5, m.f(4)), call(m.b(4), 1.5, m.i(9, 4))])
add("where.ScalarOther", lambda m: [call(m.b(4), m.f(4), 2), call(m.b(4), m.i(9, 4), 1.5)])
add("where.Scalar", lambda m: [call(m.b(4), 1.5, 2.0), call(m.b(4), 1, 2)])
add(
    "masked_fill.Scalar",
    lambda m: [call(m.f(3, 4), m.b(4), -float("inf")), call(m.i(9, 4), m.b(4), 7)],
)
add("masked_fill.Tensor", lambda m: [call(m.f(3, 4), m.b(4), m.f())])
