"""Matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..table import register


@register("MatMul")
def matmul(call: Call, a: Value, b: Value) -> Tensor:
    return torch.matmul(call.tensor(a), call.tensor(b))


@register("Gemm")
def gemm(call: Call, a: Value, b: Value, c: Value = None) -> Tensor:
    """`alpha * A' B' + beta * C`; `F.linear` or `addmm` where PyTorch would run those."""
    left, right, bias = call.tensor(a), call.tensor(b), call.optional(c)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    if call.flag("transA"):
        left = left.t()
    row = bias is not None and bias.ndim == 1 and bias.shape[0] != 1
    if call.flag("transB"):
        if alpha == beta == 1.0 and (bias is None or row):
            linear: Tensor = F.linear(left, right, bias)
            return linear
        right = right.t()
    if not left.is_floating_point():
        product = alpha_times(left @ right, alpha)
        return product if bias is None else product + alpha_times(bias, beta)
    if bias is None:
        product = torch.mm(left, right)
        return product if alpha == 1.0 else product * alpha
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha)


def alpha_times(x: Tensor, factor: float) -> Tensor:
    """Integer `Gemm`: the factor acts in real numbers and the result is cut back."""
    return x if factor == 1.0 else (x * factor).to(x.dtype)


@register("Einsum")
def einsum(call: Call, *values: Value) -> Tensor:
    return torch.einsum(call.string("equation", ""), *[call.tensor(value) for value in values])
