"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, Call, Known, Value, widened
from ..table import register

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Det": torch.linalg.det,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}

_BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "Mul": torch.mul,
    "Sub": torch.sub,
}

_COMPARE: dict[str, Callable[[Any, Any], Tensor]] = {
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}

_BIT_OPERATORS = {"And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}


@register(*_UNARY)
def unary(call: Call, x: Value) -> Tensor:
    return _UNARY[call.op](call.tensor(x))


@register(*_BINARY)
def binary(call: Call, a: Value, b: Value) -> Tensor:
    function = _BINARY[call.op]
    if call.op in _BIT_OPERATORS:
        return function(call.tensor(a), call.tensor(b))
    left, right = call.operand(a, b), call.operand(b, a)
    if isinstance(left, Tensor):
        return function(left, right)
    if call.op == "Sub":
        return torch.rsub(right, left)
    return function(right, left)


@register(*_COMPARE)
def compare(call: Call, a: Value, b: Value) -> Tensor:
    left, right = call.tensor(a), call.operand(b, a)
    return _COMPARE[call.op](left, right)


@register("Div")
def div(call: Call, a: Value, b: Value) -> Tensor:
    left, right = call.operand(a, b), call.operand(b, a)
    floating = (left if isinstance(left, Tensor) else right).is_floating_point()
    if not floating:
        return torch.div(call.tensor(a), call.tensor(b), rounding_mode="trunc")
    return torch.div(left, right) if isinstance(left, Tensor) else left / right


@register("Mod")
def mod(call: Call, a: Value, b: Value) -> Tensor:
    left, right = call.tensor(a), call.operand(b, a)
    if call.flag("fmod"):
        return torch.fmod(left, right)
    if left.is_floating_point() and call.opset < 28:
        call.refuse("before opset 28, fmod=0 is defined for integers only")
    return torch.remainder(left, right)


@register("Pow")
def power(call: Call, base: Value, exponent: Value) -> Tensor:
    x, y = call.tensor(base), call.operand(exponent, base)
    if not isinstance(y, Tensor):
        result = torch.pow(x, y)
    elif x.is_floating_point():
        result = torch.pow(x, y.to(x.dtype) if not y.is_floating_point() else y)
    else:
        result = torch.pow(x.to(y.dtype) if y.is_floating_point() else x, y)
    return result if result.dtype == x.dtype else result.to(x.dtype)


@register("BitShift")
def bit_shift(call: Call, x: Value, y: Value) -> Tensor:
    left = call.one_of("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    data = call.tensor(x)
    wide = data.to(torch.int64)
    shift = call.tensor(y).to(torch.int64)
    out = torch.bitwise_left_shift(wide, shift) if left else torch.bitwise_right_shift(wide, shift)
    return out.to(data.dtype)


@register("Max", "Min", "Sum", "Mean")
def variadic(call: Call, *values: Value) -> Tensor:
    tensors = [call.tensor(value) for value in values]
    function = {"Max": torch.maximum, "Min": torch.minimum}.get(call.op, torch.add)
    total = reduce(function, tensors)
    return total / len(tensors) if call.op == "Mean" else total


@register("Where")
def where(call: Call, condition: Value, x: Value, y: Value) -> Tensor:
    mask = call.tensor(condition)
    left, right = call.tensor(x), call.tensor(y)
    return torch.where(mask, left, right)


@register("Cast")
def cast(call: Call, x: Value) -> Tensor:
    to = call.integer("to", 0)
    if to not in DTYPES:
        call.refuse(f"cast to ONNX type {to} is not supported")
    return _cast(call, x, DTYPES[to])


@register("CastLike")
def cast_like(call: Call, x: Value, like: Value) -> Tensor:
    target = like.data if isinstance(like, Known) else call.tensor(like)
    return _cast(call, x, target.dtype)


def _cast(call: Call, x: Value, dtype: torch.dtype) -> Tensor:
    data = call.tensor(x)
    if data.dtype == dtype:
        return data
    scalar = isinstance(x, Known) and data.ndim == 0 and data.dtype == torch.float32
    if scalar and dtype == torch.float64:
        # The exporter writes Python floats as float32 and casts them.
        return torch.tensor(widened(call.scalar(x), call.literals), dtype=dtype)
    return data.to(dtype)


@register("BitCast")
def bit_cast(call: Call, x: Value) -> Tensor:
    to = call.integer("to", 0)
    data = call.tensor(x)
    if to not in DTYPES or DTYPES[to].itemsize != data.dtype.itemsize:
        call.refuse(f"bit cast to ONNX type {to} is not supported")
    return data.view(DTYPES[to])


@register("Clip")
def clip(call: Call, x: Value, low: Value = None, high: Value = None) -> Tensor:
    data = call.tensor(x)
    if call.opset < 11:
        given = call.attributes
        ends = [call.number(name, 0.0) if name in given else None for name in ("min", "max")]
        return data if ends == [None, None] else torch.clamp(data, *ends)
    if low is None and high is None:
        return data
    if all(bound is None or isinstance(bound, Known) for bound in (low, high)):
        limits = [call.scalar(low, "min"), call.scalar(high, "max")]
        return torch.clamp(data, *limits)
    return torch.clamp(data, call.optional(low), call.optional(high))


@register("IsInf")
def is_inf(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    positive, negative = call.flag("detect_positive", True), call.flag("detect_negative", True)
    if positive and negative:
        return torch.isinf(data)
    if positive:
        return torch.isposinf(data)
    return torch.isneginf(data) if negative else torch.zeros_like(data, dtype=torch.bool)


_WITH_ALPHA: dict[str, tuple[Callable[[Tensor, float], Tensor], float]] = {
    "Celu": (F.celu, 1.0),
    "Elu": (F.elu, 1.0),
    "LeakyRelu": (F.leaky_relu, 0.01),
}
"""Activations of one number, and its default."""


@register(*_WITH_ALPHA)
def with_alpha(call: Call, x: Value) -> Tensor:
    function, default = _WITH_ALPHA[call.op]
    return function(call.tensor(x), call.number("alpha", default))


@register("PRelu")
def prelu(call: Call, x: Value, slope: Value) -> Tensor:
    data, weight = call.tensor(x), call.tensor(slope)
    channels = data.shape[1] if data.ndim > 1 else 1
    per_channel = weight.ndim == data.ndim - 1 and weight.numel() == weight.shape[0] == channels
    if weight.numel() == 1 or per_channel or call.flag("per_channel"):
        return F.prelu(data, weight.reshape(-1))
    return torch.where(data < 0, data * weight, data)


@register("Selu")
def selu(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    alpha, gamma = call.number("alpha", 1.6732632), call.number("gamma", 1.050701)
    if (alpha, gamma) == (1.6732632, 1.050701):
        return F.selu(data)
    return gamma * F.elu(data, alpha)


@register("ThresholdedRelu")
def thresholded_relu(call: Call, x: Value) -> Tensor:
    return F.threshold(call.tensor(x), call.number("alpha", 1.0), 0.0)


@register("HardSigmoid")
def hard_sigmoid(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    if beta == 0.5 and math.isclose(alpha, 1 / 6, rel_tol=1e-6):
        return F.hardsigmoid(data)
    return torch.clamp(alpha * data + beta, 0, 1)


@register("Shrink")
def shrink(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    bias, lambd = call.number("bias", 0.0), call.number("lambd", 0.5)
    zero = torch.zeros_like(data)
    low = torch.where(data < -lambd, data + bias, zero)
    return torch.where(data > lambd, data - bias, low).to(data.dtype)


@register("Gelu")
def gelu(call: Call, x: Value) -> Tensor:
    approximate = call.one_of("approximate", "none", ("none", "tanh"))
    return F.gelu(call.tensor(x), approximate=approximate)


@register("Swish")
def swish(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    alpha = call.number("alpha", 1.0)
    return F.silu(data) if alpha == 1.0 else data * torch.sigmoid(alpha * data)
