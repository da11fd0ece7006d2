"""Arithmetic on unsigned integers of 16, 32 and 64 bits, which PyTorch stores but hardly computes.

Values travel as int64: exact for 16 and 32 bits. The bits of a uint64 at or above 2^63 are a
negative int64; sums, products and bitwise operators keep the right bits, while order, division
and shifts to the right are told apart below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .call import Call, Known, Lowering, Value

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_LEAST = -(2**63)

_NOT_ARITHMETIC = frozenset(
    {
        "BitCast",
        "Cast",
        "CastLike",
        "DequantizeLinear",
        "Identity",
        "QuantizeLinear",
        "Shape",
        "Size",
    }
)
"""Operators for which PyTorch does all that is needed, or the type itself matters."""

_TYPE_GIVEN_BY = {"OneHot": 2, "Where": 1}
"""Position of the input that has the type of the result, where it is not the first."""

_POSITIONS = frozenset({"ArgMax", "ArgMin", "NonZero"})
"""Operators that give positions, whatever the type of their inputs."""

_LARGER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Max": torch.maximum,
    "Min": torch.minimum,
}
_UNSURE = frozenset(
    {"ArgMax", "ArgMin", "Clip", "Pow", "ReduceMax", "ReduceMean", "ReduceMin", "Relu", "TopK"}
)
"""Operators whose result on large uint64 is not looked after here."""


def with_unsigned(lowering: Lowering) -> Lowering:
    """The lowering on int64 where an input is unsigned, its results in the unsigned type."""

    @wraps(lowering)
    def lowered(call: Call, *values: Value) -> Any:
        if not is_unsigned(call, values):
            return lowering(call, *values)
        place = _TYPE_GIVEN_BY.get(call.op, 0)
        kind = _dtype(values[place]) if place < len(values) else None
        wide = [_widened(call, value) for value in values]
        if kind == torch.uint64:
            special = _on_bits(call, wide)
            if special is not None:
                return special
        results = lowering(call, *wide)
        if kind not in _UNSIGNED or call.op in _POSITIONS:
            return results
        if call.op == "TopK":
            return (_narrowed(results[0], kind), *results[1:])
        return tree_map(lambda leaf: _narrowed(leaf, kind), results)

    return lowered


def is_unsigned(call: Call, values: Sequence[Value]) -> bool:
    """Return whether this is arithmetic on unsigned integers that PyTorch hardly computes."""
    return call.op not in _NOT_ARITHMETIC and any(_dtype(value) in _UNSIGNED for value in values)


def _dtype(value: Value) -> torch.dtype | None:
    data = value.data if isinstance(value, Known) else value
    return data.dtype if isinstance(data, Tensor) else None


def _widened(call: Call, value: Value) -> Value:
    if isinstance(value, list) or _dtype(value) not in _UNSIGNED:
        return value
    if not isinstance(value, Known):
        return call.tensor(value).to(torch.int64)
    call.touched.add(value.name)
    return value.with_data(value.data.to(torch.int64))


def _narrowed(leaf: Any, kind: torch.dtype) -> Any:
    """Back to the type of the inputs, except for truth values and floats."""
    if not isinstance(leaf, Tensor) or leaf.dtype != torch.int64:
        return leaf
    if kind != torch.uint64:
        leaf = leaf.remainder(2 ** (16 if kind == torch.uint16 else 32))
    return leaf.to(kind)


def _on_bits(call: Call, values: list[Value]) -> Tensor | None:
    """uint64 operators for which the sign bit matters; None for all others."""
    if call.op in _UNSURE:
        call.refuse("uint64 is not supported")
    if call.op not in (*_LARGER, "BitShift", "Div", "Mod"):
        return None
    tensors = [call.tensor(value) for value in values]
    if call.op in _LARGER:
        result = tensors[0] ^ _LEAST
        for tensor in tensors[1:]:
            result = _LARGER[call.op](result, tensor ^ _LEAST)
        return result if result.dtype == torch.bool else (result ^ _LEAST).to(torch.uint64)
    left, right = tensors
    if call.op == "BitShift":
        if call.string("direction", "") == "LEFT":
            shifted = torch.where(right < 64, left << right.clamp(0, 63), 0)
        else:
            first = (left >> 1) & ~_LEAST
            shifted = torch.where(right == 0, left, first >> (right - 1).clamp(0, 63))
        return shifted.to(torch.uint64)
    quotient = _quotient(left, right)
    return (quotient if call.op == "Div" else left - quotient * right).to(torch.uint64)


def _quotient(left: Tensor, right: Tensor) -> Tensor:
    """Unsigned division of bits (Hacker's Delight, 9-3): halve, divide, double, correct."""
    safe = torch.where(right > 0, right, 1)
    half = (left >> 1) & ~_LEAST
    estimate = torch.div(half, safe, rounding_mode="trunc") << 1
    rest = left - estimate * safe
    estimate = estimate + ((rest ^ _LEAST) >= (safe ^ _LEAST)).to(torch.int64)
    large = ((left ^ _LEAST) >= (right ^ _LEAST)).to(torch.int64)
    return torch.where(right < 0, large, estimate)
