"""Sample calls of operators by element and of matrix products; see `calls`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from helpers.jax.samples.calls import Call, Make, Samples, add, all_dtypes, aten, call

__all__: list[str] = []

# --- element by element -------------------------------------------------------------
add("abs.default sgn.default sign.default", lambda m: [call(m.f(3, 4)), call(m.i(9, 5) - 4)])
add("neg.default square.default", lambda m: [call(m.f(3, 4)), call(m.i(9, 5) - 4)])
add(
    "ceil.default floor.default round.default trunc.default",
    lambda m: [call(m.f(3, 4) * 3), call(torch.tensor([-2.5, -0.5, 0.5, 1.5], dtype=m.dtype))],
)
add(
    "exp.default exp2.default expm1.default sin.default cos.default tan.default atan.default "
    "sinh.default cosh.default tanh.default erf.default erfc.default sigmoid.default",
    all_dtypes,
)
add("asin.default acos.default", lambda m: [call(m.unit(3, 4) - 0.5)])
add(
    "log.default log2.default log10.default log1p.default sqrt.default rsqrt.default "
    "reciprocal.default",
    lambda m: [call(m.pos(3, 4)), call(m.pos()), call(m.i(4, 5) + 1)],
)
add(
    "clamp.default",
    lambda m: [
        call(m.f(4, 5), -0.5, 0.5),
        call(m.f(4, 5), None, 0.5),
        call(m.f(4, 5), 0),
        call(m.i(9, 5), 2, 6),
        call(m.i(9, 5), 2.5),
    ],
)
add(
    "clamp.Tensor",
    lambda m: [call(m.f(4, 5), m.f(5) - 1, m.f(5) + 1), call(m.f(4, 5), None, m.f())],
)
add("clamp_min.Tensor clamp_max.Tensor", lambda m: [call(m.f(4, 5), m.f(5)), call(m.f(4), m.f())])
add("fill.Scalar", lambda m: [call(m.f(4), 2), call(m.i(9, 4), 3)])
add("clamp_min.default clamp_max.default", lambda m: [call(m.f(4, 5), 0.1), call(m.i(9, 5), 3)])

# --- arithmetic ------------------------------------------------------------------------


def _pairs(m: Make) -> list[Call]:
    """Every mix of kinds and ranks that promotion tells apart."""
    half = torch.float16 if m.dtype != torch.float16 else torch.bfloat16
    return [
        call(m.f(3, 4), m.f(4)),
        call(m.f(3, 1), m.f(1, 4)),
        call(m.f(3, 4), 1.5),
        call(m.f(3, 4), 2),
        call(m.f(3, 4), m.f().double()),
        call(m.f(3, 4).float(), m.pos().double()),
        call(m.f().float(), m.f().double()),
        call(m.f(3, 4).to(half), m.f(4)),
        call(m.i(9, 4) + 1, m.i(9, 4) + 1),
        call(m.i(9, 4) + 1, 3),
        call(m.i(9, 4) + 1, 1.5),
        call(m.i(9, 4) + 1, m.f(4)),
        call(m.i(9, 4) + 1, m.f()),
        call((m.i(9, 4) + 1).int(), m.i(9, 4) + 1),
        call((m.i(9, 4) + 1).int(), m.i(9) + 1),
        call(m.i(9) + 1, m.f(4)),
    ]


def _nonzero(made: Samples) -> Samples:
    """The same without small divisors."""

    def replaced(m: Make) -> list[Call]:
        calls = []
        for c in made(m):
            x, other = c.args
            if isinstance(other, Tensor) and other.is_floating_point():
                other = torch.where(other < 0, other - 0.5, other + 0.5)
            calls.append(Call((x, other), c.kwargs))
        return calls

    return replaced


def _with_scaled(m: Make) -> list[Call]:
    return [
        *_pairs(m),
        call(m.f(3, 4), m.f(3, 4), alpha=0.5),
        call(m.i(9, 4), m.i(9, 4), alpha=2),
    ]


def _with_bool(made: Samples) -> Samples:
    return lambda m: [*made(m), call(m.b(4), m.f(4)), call(m.b(4), m.i(9, 4)), call(m.b(4), 2)]


def _scalars(m: Make) -> list[Call]:
    return [call(m.f(3, 4), 1.5), call(m.f(), 2), call(m.i(9, 4), 3), call(m.i(9, 4), 1.5)]


def _whole(m: Make) -> list[Call]:
    """Quotients far from integers, so that rounding cannot go either way."""
    return [
        call(torch.tensor([5.3, -5.3, 0.4, 7.7], dtype=m.dtype), 2.0),
        call(
            torch.tensor([5.3, -5.3, 0.4], dtype=m.dtype), torch.tensor([2, -2, 2], dtype=m.dtype)
        ),
        call(torch.tensor([7, -7, 8, -8]), 3),
        call(torch.tensor([7, -7, 8, -8]), torch.tensor([3, 3, -3, -3])),
        call(torch.tensor([7, -7, 8, -8]), torch.tensor([3, 3, -3, -3], dtype=torch.int32)),
    ]


def _only_scalars(made: Samples) -> Samples:
    return lambda m: [c for c in made(m) if not isinstance(c.args[1], Tensor)]


def _only_tensors(made: Samples) -> Samples:
    return lambda m: [c for c in made(m) if isinstance(c.args[1], Tensor)]


def _rounded(made: Samples) -> Samples:
    return lambda m: (
        [Call(c.args, {"rounding_mode": mode}) for c in made(m) for mode in ("floor", "trunc")]
        + [Call(c.args, {"rounding_mode": None}) for c in made(m)]
    )


add("add.Tensor", _with_bool(_with_scaled))
add("sub.Tensor", _with_scaled)
add("rsub.Tensor", _only_tensors(_with_scaled))
add("mul.Tensor", lambda m: [*_with_bool(_pairs)(m), call(m.b(4), m.b(4))])
add("div.Tensor", _with_bool(_nonzero(_pairs)))
add("add.Scalar sub.Scalar rsub.Scalar", lambda m: [*_scalars(m), call(m.f(3), 2.0, 0.5)])
add("mul.Scalar div.Scalar", _scalars)
add("div.Tensor_mode", _rounded(_whole))
add("div.Scalar_mode", _rounded(_only_scalars(_whole)))
add("floor_divide.default", _whole)
add("remainder.Tensor fmod.Tensor", _only_tensors(_whole))
add("remainder.Scalar fmod.Scalar", _only_scalars(_whole))
add(
    "pow.Tensor_Scalar",
    lambda m: [
        *(call(m.pos(3, 4), p) for p in (0.5, -0.5, 1, 1.0, 2, 3, 3.0, 2.7, -1, 4, 0)),
        call(m.f(3, 4), 2),
        call(m.f(3, 4), 3.0),
        call(m.i(5, 4), 2),
        call(m.i(5, 4), 5),
        call(m.i(5, 4), 0.5),
    ],
)
add("pow.Tensor_Tensor", lambda m: [call(m.pos(3, 4), m.f(4)), call(m.pos(3, 4), m.i(4, 4))])
add("pow.Scalar", lambda m: [call(2, m.f(4)), call(1.5, m.f(4)), call(2, m.i(4, 4))])
add("maximum.default minimum.default", lambda m: [call(m.f(3, 4), m.f(4)), call(m.i(9, 4), m.f(4))])
add("atan2.default", lambda m: [call(m.f(3, 4), m.f(4))])
add("xlogy.Tensor", lambda m: [call(m.i(2, 9), m.pos(9)), call(m.f(3, 4), m.pos(4))])
add("lerp.Scalar", lambda m: [call(m.f(3, 4), m.f(3, 4), 0.3)])
add(
    "addcmul.default addcdiv.default",
    lambda m: [call(m.f(3, 4), m.f(4), m.pos(3, 1)), call(m.f(4), m.f(4), m.pos(4), value=0.5)],
)

# --- comparisons and logic ------------------------------------------------------------
for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    add(
        f"{name}.Tensor",
        lambda m: [
            call(m.i(3, 4, 5), m.i(3, 5)),
            call(m.f(4), m.f(4)),
            call(m.i(3, 9), m.f(9).round()),
        ],
    )
    add(f"{name}.Scalar", lambda m: [call(m.i(3, 9), 1), call(m.f(9), 0.1), call(m.i(3, 9), 0.5)])
for name in ("and", "or", "xor"):
    add(
        f"bitwise_{name}.Tensor",
        lambda m: [call(m.b(4, 1), m.b(5)), call(m.i(9, 5), m.i(9, 5)), call(m.b(5), m.i(9, 5))],
    )
    add(f"bitwise_{name}.Scalar", lambda m: [call(m.i(9, 5), 5)])
    add(
        f"logical_{name}.default",
        lambda m: [call(m.b(4, 1), m.b(5)), call(m.i(2, 5), m.f(5)), call(m.f(5), m.b(5))],
    )
add("bitwise_not.default", lambda m: [call(m.b(5)), call(m.i(9, 5))])
add("logical_not.default", lambda m: [call(m.b(5)), call(m.i(2, 5)), call(m.f(5).round())])


def _odd(m: Make) -> Tensor:
    return torch.tensor([0.0, float("nan"), float("inf"), -float("inf")], dtype=m.dtype)


add("isnan.default isinf.default", lambda m: [call(_odd(m)), call(m.i(3, 4))])

# --- activations ---------------------------------------------------------------------


def _wide_range(m: Make) -> list[Call]:
    return [call(m.f(4, 6) * 3), call(m.f())]


def _with_grad(*more: Any) -> Samples:
    return lambda m: [call(m.f(4, 6), m.f(4, 6) * 3, *more)]


add("relu.default", lambda m: [*_wide_range(m), call(m.i(9, 5) - 4)])
add(
    "silu.default hardswish.default hardsigmoid.default log_sigmoid_forward.default mish.default",
    _wide_range,
)
add("gelu.default", lambda m: [*_wide_range(m), call(m.f(4, 6) * 3, approximate="tanh")])
add(
    "gelu_backward.default",
    lambda m: [call(m.f(9), m.f(9) * 2, approximate=how) for how in ("none", "tanh")],
)
add("threshold_backward.default", lambda m: [*_with_grad(0)(m), *_with_grad(0.5)(m)])
add("sigmoid_backward.default tanh_backward.default", lambda m: [call(m.f(4, 6), m.unit(4, 6))])
add("silu_backward.default mish_backward.default", _with_grad())
add("hardswish_backward.default hardsigmoid_backward.default", _with_grad())
add("softplus.default", lambda m: [*_wide_range(m), call(m.f(20) * 20), call(m.f(9), 2, 1.5)])
add("softplus_backward.default", lambda m: [*_with_grad(1, 20)(m), call(m.f(9), m.f(9), 2, 1.5)])
add("leaky_relu.default", lambda m: [*_wide_range(m), call(m.f(9), 0.2)])
add("leaky_relu_backward.default", _with_grad(0.2, False))
add("elu.default", lambda m: [*_wide_range(m), call(m.f(9), 1.67, 1.05, 0.9)])
add(
    "elu_backward.default",
    lambda m: [call(m.f(9), 1.67, 1.05, 0.9, result, m.f(9)) for result in (False, True)],
)
add("hardtanh.default", lambda m: [*_wide_range(m), call(m.f(9), -0.3, 6.0)])
add("glu.default", lambda m: [call(m.f(4, 6)), call(m.f(4, 6), 0)])
add("glu_backward.default", lambda m: [call(m.f(4, 3), m.f(4, 6), -1)])
add("celu.default", lambda m: [*_wide_range(m), call(m.f(9), 0.7)])
add("_prelu_kernel.default", lambda m: [call(m.f(2, 3, 4), m.f(1, 3, 1))])
add("_prelu_kernel_backward.default", lambda m: [call(m.f(2, 3), m.f(2, 3), m.f(1, 3))])
add("hardtanh_backward.default", _with_grad(-0.3, 1.0))


def _log_sigmoid_backward(m: Make) -> list[Call]:
    x = m.f(4, 6)
    return [call(m.f(4, 6), x, aten.log_sigmoid_forward(x)[1])]


add("log_sigmoid_backward.default", _log_sigmoid_backward)

# --- matrix products ------------------------------------------------------------------
add("mm.default", lambda m: [call(m.f(3, 4), m.f(4, 5)), call(m.i(5, 3, 4), m.i(5, 4, 2))])
add("bmm.default", lambda m: [call(m.f(2, 3, 4), m.f(2, 4, 5))])
add("mv.default", lambda m: [call(m.f(3, 4), m.f(4))])
add("vdot.default", lambda m: [call(m.f(4), m.f(4))])
add("dot.default", lambda m: [call(m.f(4), m.f(4))])
add(
    "addmm.default",
    lambda m: [
        call(m.f(5), m.f(3, 4), m.f(4, 5)),
        call(m.f(3, 1), m.f(3, 4), m.f(4, 5), beta=0.5, alpha=2),
        call(m.f(5) * float("nan"), m.f(3, 4), m.f(4, 5), beta=0),
    ],
)
add(
    "baddbmm.default",
    lambda m: [
        call(m.f(2, 3, 5), m.f(2, 3, 4), m.f(2, 4, 5)),
        call(m.f(2, 3, 5), m.f(2, 3, 4), m.f(2, 4, 5), beta=0.5, alpha=0.3),
    ],
)
