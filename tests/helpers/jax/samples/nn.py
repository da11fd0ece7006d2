"""Sample calls of the operators of layers and losses; see `calls`."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from helpers.jax.samples.calls import Call, Make, add, aten, call

__all__: list[str] = []

# --- normalisation ------------------------------------------------------------------


def _affine(m: Make, x: Tensor, *shape: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return m.f(*x.shape), x, m.pos(*shape), m.f(*shape), m.pos(*shape)


def _layer_norm(m: Make) -> list[Call]:
    return [
        call(m.f(3, 4, 6), [6], m.pos(6), m.f(6), 1e-5),
        call(m.f(3, 4, 6) + 5, [4, 6], m.pos(4, 6), None, 1e-3),
        call(m.f(3, 6), [6], None, None, 1e-5),
    ]


add("native_layer_norm.default", _layer_norm)


def _layer_norm_backward(m: Make) -> list[Call]:
    calls = []
    for c in _layer_norm(m):
        x, shape, weight, bias, _ = c.args
        _, mean, rstd = aten.native_layer_norm(*c.args)
        mask = [True, weight is not None, bias is not None]
        calls.append(call(m.f(*x.shape), x, shape, mean, rstd, weight, bias, mask))
    calls.append(call(*calls[0].args[:-1], [False, True, False]))
    return calls


add("native_layer_norm_backward.default", _layer_norm_backward)


def _group_norm(m: Make) -> list[Call]:
    return [
        call(m.f(2, 6, 3, 4), m.pos(6), m.f(6), 2, 6, 12, 3, 1e-5),
        call(m.f(2, 6, 5) + 3, None, None, 2, 6, 5, 2, 1e-3),
    ]


add("native_group_norm.default", _group_norm)


def _group_norm_backward(m: Make) -> list[Call]:
    calls = []
    for c in _group_norm(m):
        x, weight, _, *sizes, _ = c.args
        _, mean, rstd = aten.native_group_norm(*c.args)
        mask = [True, weight is not None, weight is not None]
        calls.append(call(m.f(*x.shape), x, mean, rstd, weight, *sizes, mask))
    return calls


add("native_group_norm_backward.default", _group_norm_backward)


def _batch_norm(m: Make, training: tuple[bool, ...] = (True, False)) -> list[Call]:
    return [
        call(x, *parameters, m.f(4), m.pos(4), mode, 0.1, 1e-5)
        for mode in training
        for x, parameters in (
            (m.f(3, 4, 2, 2) + 2, (m.pos(4), m.f(4))),
            (m.f(5, 4), (None, None)),
        )
    ]


add(
    "_native_batch_norm_legit_functional.default _native_batch_norm_legit.default "
    "native_batch_norm.default",
    _batch_norm,
)
add(
    "_native_batch_norm_legit.no_stats",
    lambda m: [Call((*c.args[:3], *c.args[5:])) for c in _batch_norm(m, (True,))],
)


def _batch_norm_backward(m: Make) -> list[Call]:
    calls = []
    for c in _batch_norm(m):
        x, weight, bias, mean, var, training, _, eps = c.args
        if weight is None:
            weight = m.pos(4)
        _, save_mean, save_invstd, *_ = aten._native_batch_norm_legit_functional(
            x, weight, bias, mean, var, *c.args[5:]
        )
        stats = (None, None) if training else (mean, var)
        saved = (save_mean, save_invstd) if training else (None, None)
        for mask in ([True, True, True], [False, True, False]):
            calls.append(call(m.f(*x.shape), x, weight, *stats, *saved, training, eps, mask))
    return calls


add("native_batch_norm_backward.default", _batch_norm_backward)

add(
    "_native_batch_norm_legit_no_training.default",
    lambda m: [Call((*c.args[:5], *c.args[6:])) for c in _batch_norm(m, (False,))],
)
add(
    "_weight_norm_interface.default",
    lambda m: [call(m.f(4, 3), m.pos(4, 1), 0), call(m.f(2, 3, 4), m.pos(1, 1, 4), 2)],
)


def _weight_norm_backward(m: Make) -> list[Call]:
    v, g = m.f(4, 3), m.pos(4, 1)
    return [call(m.f(4, 3), v, g, aten._weight_norm_interface(v, g, 0)[1], 0)]


add("_weight_norm_interface_backward.default", _weight_norm_backward)

# --- attention ----------------------------------------------------------------------


def _attention(m: Make) -> list[Call]:
    q, k, v = m.f(2, 3, 5, 4), m.f(2, 3, 7, 4), m.f(2, 3, 7, 4)
    square = m.f(2, 3, 5, 4)
    blind = m.f(5, 7)
    blind[2] = -float("inf")
    return [
        call(q, k, v),
        call(q, square, m.f(2, 3, 5, 4), 0.0, True),
        call(q, k, v, scale=0.3),
        call(q, k, v, attn_mask=m.f(2, 1, 5, 7)),
        call(q, k, v, 0.0, False, attn_mask=m.f(5, 7), scale=0.7),
        call(q, k, v, attn_mask=blind),
    ]


add("_scaled_dot_product_flash_attention_for_cpu.default", _attention)


def _attention_backward(m: Make) -> list[Call]:
    calls = []
    for c in _attention(m):
        out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(*c.args, **c.kwargs)
        options = c.args[3:] or (0.0, False)
        given = (m.f(*out.shape), *c.args[:3], out, logsumexp, *options)
        calls.append(Call(given, c.kwargs))
    return calls


add("_scaled_dot_product_flash_attention_for_cpu_backward.default", _attention_backward)

# --- convolution and pooling ------------------------------------------------------------


def _convolution(m: Make) -> list[Call]:
    one, two = [1, 1], [2, 2]
    return [
        call(m.f(2, 3, 7, 6), m.f(4, 3, 3, 2), m.f(4), one, [1, 0], one, False, [0, 0], 1),
        call(m.f(2, 4, 7, 6), m.f(6, 2, 3, 3), None, [2, 1], [1, 1], [1, 2], False, [0, 0], 2),
        call(m.f(2, 4, 7, 6), m.f(4, 1, 3, 3), m.f(4), one, one, one, False, [0, 0], 4),
        call(m.f(2, 4, 4, 3), m.f(4, 3, 2, 2), m.f(3), two, [0, 0], one, True, [0, 0], 1),
        call(m.f(2, 4, 4, 3), m.f(4, 3, 3, 2), None, two, [1, 0], one, True, [1, 0], 2),
        call(m.f(2, 4, 4, 3), m.f(4, 2, 3, 2), m.f(2), one, [1, 1], [2, 1], True, [0, 0], 1),
        call(m.f(2, 3, 8), m.f(4, 3, 3), m.f(4), [2], [1], [1], False, [0], 1),
        call(m.f(1, 2, 4, 5, 4), m.f(3, 2, 2, 3, 2), None, [1], [1], [1], False, [0], 1),
        call(m.f(2, 4, 5), m.f(4, 2, 3), m.f(2), [2], [1], [1], True, [1], 1),
    ]


add("convolution.default", _convolution)


def _convolution_backward(m: Make) -> list[Call]:
    calls = []
    for c in _convolution(m):
        x, weight, bias, *how = c.args
        out = aten.convolution(*c.args)
        sizes = None if bias is None else list(bias.shape)
        mask = [True, True, bias is not None]
        calls.append(call(m.f(*out.shape), x, weight, sizes, *how, mask))
    calls.append(call(*calls[0].args[:-1], [False, True, False]))
    return calls


add("convolution_backward.default", _convolution_backward)


def _max_pool(m: Make) -> list[Call]:
    ties = torch.zeros(1, 2, 6, 6, dtype=m.dtype)
    return [
        call(m.f(2, 3, 6, 8), [2, 2]),
        call(m.f(2, 3, 7, 8), [3, 3], [2, 2], [1, 1]),
        call(m.f(2, 3, 7, 8), [3, 2], [2, 2], [1, 0], [1, 2], True),
        call(m.f(3, 7, 8), [3, 3], [2, 2], [0, 0], [2, 1], True),
        call(ties, [3], [2], [1]),
    ]


add("max_pool2d_with_indices.default", _max_pool)


def _max_pool_backward(m: Make) -> list[Call]:
    calls = []
    defaults: tuple[Any, ...] = ([], [0, 0], [1, 1], False)
    for c in _max_pool(m):
        x, kernel, *rest = c.args
        how = (kernel, *rest, *defaults[len(rest) :])
        out, indices = aten.max_pool2d_with_indices(x, *how)
        calls.append(call(m.f(*out.shape), x, *how, indices))
    return calls


add("max_pool2d_with_indices_backward.default", _max_pool_backward)


def _avg_pool(m: Make) -> list[Call]:
    return [
        call(m.f(2, 3, 6, 8), [2, 2], [], [0, 0], False, True, None),
        call(m.f(2, 3, 7, 8), [3, 3], [2, 2], [1, 1], False, False, None),
        call(m.f(2, 3, 7, 8), [3, 2], [2, 2], [1, 0], True, True, None),
        call(m.f(2, 3, 7, 8), [3, 2], [2, 2], [1, 0], True, False, 5),
    ]


add("avg_pool2d.default", _avg_pool)


def _avg_pool_backward(m: Make) -> list[Call]:
    return [call(m.f(*aten.avg_pool2d(*c.args).shape), *c.args) for c in _avg_pool(m)]


add("avg_pool2d_backward.default", _avg_pool_backward)
add(
    "_adaptive_avg_pool2d.default",
    lambda m: [call(m.f(2, 3, 7, 8), [3, 4]), call(m.f(3, 5, 4), [1, 7])],
)
add(
    "_adaptive_avg_pool2d_backward.default",
    lambda m: [call(m.f(2, 3, 3, 4), m.f(2, 3, 7, 8)), call(m.f(2, 3, 7, 1), m.f(2, 3, 5, 4))],
)

add(
    "reflection_pad1d.default replication_pad1d.default",
    lambda m: [call(m.f(2, 3, 6), [2, 1])],
)
add(
    "reflection_pad2d.default replication_pad2d.default",
    lambda m: [call(m.f(2, 3, 6, 5), [2, 1, 0, 3])],
)
add(
    "reflection_pad1d_backward.default replication_pad1d_backward.default",
    lambda m: [call(m.f(2, 3, 9), m.f(2, 3, 6), [2, 1])],
)
add(
    "reflection_pad2d_backward.default replication_pad2d_backward.default",
    lambda m: [call(m.f(2, 3, 9, 8), m.f(2, 3, 6, 5), [2, 1, 0, 3])],
)
add(
    "upsample_nearest2d.default",
    lambda m: [call(m.f(2, 3, 4, 3), [9, 4]), call(m.f(2, 3, 4, 3), [9, 4], 2.4, 1.5)],
)
add(
    "upsample_nearest2d_backward.default",
    lambda m: [call(m.f(2, 3, 9, 4), [9, 4], [2, 3, 4, 3])],
)
add("pixel_shuffle.default", lambda m: [call(m.f(2, 8, 3, 2), 2)])
add("pixel_unshuffle.default", lambda m: [call(m.f(2, 2, 6, 4), 2)])

# --- losses -------------------------------------------------------------------------


def _reduced(forward: Any, *more: Any, target: str = "f") -> Any:
    """Calls (x, target, reduction, *more) for each reduction."""

    def made(m: Make) -> list[Call]:
        return [
            call(m.f(3, 4) * 2, getattr(m, target)(3, 4), reduction, *more)
            for reduction in (0, 1, 2)
        ]

    return made


def _reduced_backward(*more: Any) -> Any:
    def made(m: Make) -> list[Call]:
        grads = {0: m.f(3, 4), 1: m.f(), 2: m.f()}
        return [call(g, m.f(3, 4) * 2, m.f(3, 4), r, *more) for r, g in grads.items()]

    return made


add("mse_loss.default", _reduced("mse_loss"))
add("mse_loss_backward.default", _reduced_backward())
for beta in (0.7,):
    add("smooth_l1_loss.default huber_loss.default", _reduced("", beta))
    add("smooth_l1_loss_backward.default huber_loss_backward.default", _reduced_backward(beta))


def _weights(m: Make) -> list[Tensor | None]:
    return [None, m.pos(4)]


add(
    "binary_cross_entropy.default",
    lambda m: [
        call(m.unit(3, 4), m.unit(3, 4), weight, reduction)
        for weight, reduction in itertools.product(_weights(m), (0, 1, 2))
    ],
)
add(
    "binary_cross_entropy_backward.default",
    lambda m: [
        call(m.f(3, 4) if reduction == 0 else m.f(), m.unit(3, 4), m.unit(3, 4), weight, reduction)
        for weight, reduction in itertools.product(_weights(m), (0, 1, 2))
    ],
)
add(
    "binary_cross_entropy_with_logits.default",
    lambda m: [
        call(m.f(3, 4) * 9, m.unit(3, 4), weight, positive, reduction)
        for weight, positive, reduction in itertools.product(_weights(m), _weights(m), (0, 1, 2))
    ],
)


def _nll(shape: tuple[int, ...]) -> Any:
    """Log-probabilities of `shape`, the classes on axis 1; one target is ignored."""

    def made(m: Make) -> list[Call]:
        classes = shape[1] if len(shape) > 1 else shape[0]
        target = m.i(classes, *shape[:1], *shape[2:]) if len(shape) > 1 else m.i(classes)
        if target.dim():
            target.view(-1)[0] = -100
        x = m.f(*shape).log_softmax(1 if len(shape) > 1 else 0)
        return [
            call(x, target, weight, reduction, -100)
            for weight, reduction in itertools.product([None, m.pos(classes)], (0, 1, 2))
        ]

    return made


def _nll_backward(made: Any, forward: Any) -> Any:
    def backward(m: Make) -> list[Call]:
        calls = []
        for c in made(m):
            loss, total = forward(*c.args)
            calls.append(call(m.f(*loss.shape), *c.args, total))
        return calls

    return backward


add("nll_loss_forward.default", lambda m: [*_nll((5, 4))(m), *_nll((4,))(m)])
add("nll_loss_backward.default", _nll_backward(_nll((5, 4)), aten.nll_loss_forward))
add("nll_loss2d_forward.default", _nll((2, 4, 3, 2)))
add("nll_loss2d_backward.default", _nll_backward(_nll((2, 4, 3, 2)), aten.nll_loss2d_forward))

# --- indexing -----------------------------------------------------------------------
add(
    "embedding.default",
    lambda m: [call(m.f(7, 3), m.i(7, 2, 4)), call(m.f(7, 3), m.i(7, 4).int(), 2)],
)
add(
    "embedding_dense_backward.default",
    lambda m: [
        call(m.f(2, 4, 3), m.i(5, 2, 4), 5, -1, False),
        call(m.f(2, 4, 3), m.i(5, 2, 4), 5, 2, False),
        call(m.f(2, 9, 3), m.i(5, 2, 9), 5, -1, True),
    ],
)


def _index(m: Make) -> list[Call]:
    return [
        call(m.f(5, 4), [m.i(5, 3)]),
        call(m.f(5, 4), [m.i(5, 3, 1) - 5, m.i(4, 2)]),
        call(m.f(2, 3, 5, 4), [None, None, m.i(5, 6, 1), m.i(4, 2)]),
        call(m.f(5, 3, 4), [m.i(5, 2), None, m.i(4, 2)]),
        call(m.f(5, 3, 4), [None, m.i(3, 2)]),
    ]


add("index.Tensor _unsafe_index.Tensor", _index)


def _index_put(m: Make) -> list[Call]:
    calls = []
    for c in _index(m):
        x, indices = c.args
        values = m.f(*aten.index.Tensor(x, indices).shape)
        calls.append(call(x, indices, values, True))
    distinct = [torch.tensor([3, 0, 2])]
    return [*calls, call(m.f(5, 4), distinct, m.f(3, 4)), call(m.f(5, 4), distinct, m.f())]


add("index_put.default _unsafe_index_put.default", _index_put)
add(
    "index_select.default",
    lambda m: [call(m.f(5, 4), 0, m.i(5, 3)), call(m.f(5, 4), -1, m.i(4, 3))],
)
add("index_add.default", lambda m: [call(m.f(5, 4), -1, m.i(4, 6), m.f(5, 6), alpha=0.5)])
add(
    "gather.default", lambda m: [call(m.f(5, 4), 1, m.i(4, 3, 2)), call(m.f(5, 4), 0, m.i(5, 3, 4))]
)


def _distinct(m: Make) -> Tensor:
    return torch.stack([torch.randperm(4)[:3] for _ in range(2)])


add("scatter.src", lambda m: [call(m.f(5, 4), 1, _distinct(m), m.f(2, 3))])
add("scatter.value", lambda m: [call(m.f(5, 4), 1, _distinct(m), 1.5)])
add("scatter_add.default", lambda m: [call(m.f(5, 4), 0, m.i(5, 3, 4), m.f(3, 4))])
add(
    "topk.default",
    lambda m: [call(m.f(3, 6), 2), call(m.f(6, 3), 4, 0), call(m.f(3, 6), 2, -1, False)],
)
add("sort.default", lambda m: [call(m.f(3, 6)), call(m.f(6, 3), 0, True)])

# --- made from sizes and numbers ------------------------------------------------------
for name in ("zeros", "ones"):
    add(
        f"{name}.default",
        lambda m: [call([2, 3]), call([2], dtype=torch.int64, device=torch.device("cpu"))],
    )
    add(f"{name}_like.default", lambda m: [call(m.f(3)), call(m.i(9, 3), dtype=m.dtype)])
    add(f"new_{name}.default", lambda m: [call(m.f(3), [2]), call(m.f(3), [2], dtype=torch.bool)])
add("empty.memory_format", lambda m: [call([2, 3], dtype=m.dtype)])
add("empty_like.default", lambda m: [call(m.f(2, 3))])
add("new_empty.default", lambda m: [call(m.f(2, 3), [4])])
add("empty_strided.default", lambda m: [call([2, 3], [3, 1])])
add("new_empty_strided.default", lambda m: [call(m.f(2), [2, 3], [3, 1])])
add(
    "full.default",
    lambda m: [
        call([2], 1.5),
        call([2], 3),
        call([], True),
        call([2], torch.finfo(m.dtype).min, dtype=m.dtype),
    ],
)
add("full_like.default", lambda m: [call(m.i(9, 3), 15), call(m.f(3), 1.5), call(m.f(3), 2)])
add("new_full.default", lambda m: [call(m.f(3), [2], 1.5), call(m.i(9, 3), [2], 7)])
add(
    "scalar_tensor.default",
    lambda m: [call(-float("inf"), dtype=m.dtype), call(2), call(3, dtype=torch.int64)],
)
add("arange.default", lambda m: [call(7), call(3.5), call(2999, dtype=m.dtype), call(0)])
add("arange.start", lambda m: [call(2, 7), call(1.5, 4, dtype=m.dtype)])
add("arange.start_step", lambda m: [call(2, 9, 3), call(9, 2, -2), call(0, 2, 0.25, dtype=m.dtype)])
add("linspace.default", lambda m: [call(0, 1, 5, dtype=m.dtype), call(2.0, -1.0, 7)])
add("eye.default", lambda m: [call(3), call(2, dtype=torch.int64)])
add("eye.m", lambda m: [call(3, 2, dtype=m.dtype)])

add(
    "native_dropout_backward.default",
    lambda m: [call(m.f(3, 4), m.b(3, 4), 1 / 0.9)],
)
