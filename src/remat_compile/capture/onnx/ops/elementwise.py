"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, MICROSOFT, ML, Call, Known, Value, widened
from ..table import ONE, TWO, register

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
def unary(call: Call, x: Tensor) -> Tensor:
    return _UNARY[call.op](x)


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
def bit_shift(call: Call, data: Tensor, y: Tensor) -> Tensor:
    left = call.one_of("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    wide = data.to(torch.int64)
    shift = y.to(torch.int64)
    out = torch.bitwise_left_shift(wide, shift) if left else torch.bitwise_right_shift(wide, shift)
    return out.to(data.dtype)


@register("Max", "Min", "Sum", "Mean")
def variadic(call: Call, *values: Value) -> Tensor:
    tensors = [call.tensor(value) for value in values]
    function = {"Max": torch.maximum, "Min": torch.minimum}.get(call.op, torch.add)
    total = reduce(function, tensors)
    return total / len(tensors) if call.op == "Mean" else total


register("Where", reads=(*TWO, *ONE))(lambda _, mask, a, b: torch.where(mask, a, b))


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
def bit_cast(call: Call, data: Tensor) -> Tensor:
    to = call.integer("to", 0)
    if to not in DTYPES or DTYPES[to].itemsize != data.dtype.itemsize:
        call.refuse(f"bit cast to ONNX type {to} is not supported")
    return data.view(DTYPES[to])


@register("Clip")
def clip(call: Call, data: Tensor, low: Value = None, high: Value = None) -> Tensor:
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
def is_inf(call: Call, data: Tensor) -> Tensor:
    positive, negative = call.flag("detect_positive", True), call.flag("detect_negative", True)
    if positive and negative:
        return torch.isinf(data)
    if positive:
        return torch.isposinf(data)
    return torch.isneginf(data) if negative else torch.zeros_like(data, dtype=torch.bool)


def _selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    plain = (alpha, gamma) == (1.6732632, 1.050701)
    return F.selu(x) if plain else gamma * F.elu(x, alpha)


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    if beta == 0.5 and math.isclose(alpha, 1 / 6, rel_tol=1e-6):
        return F.hardsigmoid(x)
    return torch.clamp(alpha * x + beta, 0, 1)


def _shrink(x: Tensor, bias: float, lambd: float) -> Tensor:
    low = torch.where(x < -lambd, x + bias, torch.zeros_like(x))
    return torch.where(x > lambd, x - bias, low).to(x.dtype)


def _swish(x: Tensor, alpha: float) -> Tensor:
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


_WITH_NUMBERS: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "Celu": (F.celu, {"alpha": 1.0}),
    "Elu": (F.elu, {"alpha": 1.0}),
    "HardSigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": (F.leaky_relu, {"alpha": 0.01}),
    "Selu": (_selu, {"alpha": 1.6732632, "gamma": 1.050701}),
    "Shrink": (_shrink, {"bias": 0.0, "lambd": 0.5}),
    "Swish": (_swish, {"alpha": 1.0}),
    "ThresholdedRelu": (lambda x, alpha: F.threshold(x, alpha, 0.0), {"alpha": 1.0}),
}
"""Functions of one tensor and of number attributes, with their defaults."""

_OF_OTHER_DOMAINS: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "Binarizer": (lambda x, threshold: (x > threshold).to(x.dtype), {"threshold": 0.0}),
    "QuickGelu": (_swish, {"alpha": 1.702}),
}


@register("QuickGelu", domain=MICROSOFT)
@register("Binarizer", domain=ML)
@register(*_WITH_NUMBERS)
def with_numbers(call: Call, x: Tensor) -> Tensor:
    function, numbers = {**_WITH_NUMBERS, **_OF_OTHER_DOMAINS}[call.op]
    return function(x, *[call.number(name, default) for name, default in numbers.items()])


@register("PRelu")
def prelu(call: Call, data: Tensor, weight: Tensor) -> Tensor:
    channels = data.shape[1] if data.ndim > 1 else 1
    per_channel = weight.ndim == data.ndim - 1 and weight.numel() == weight.shape[0] == channels
    if weight.numel() == 1 or per_channel or call.flag("per_channel"):
        return F.prelu(data, weight.reshape(-1))
    return torch.where(data < 0, data * weight, data)


register("Gelu", reads=ONE)(
    lambda call, x: F.gelu(x, approximate=call.one_of("approximate", "none", ("none", "tanh")))
)
