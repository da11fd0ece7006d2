"""The types that a node's inputs may have, by ONNX's own schemas.

Fake tensors and broadcasting let pass what PyTorch refuses when it runs (a float matrix times
an integer one), so that it is checked while the module is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx.defs
from torch import Tensor

from ..call import Call, Known, Value

_FUSED: Mapping[str, int] = {
    "Attention": 3,
    "BiasGelu": 2,
    "FastGelu": 2,
    "FusedMatMul": 2,
    "MultiHeadAttention": 4,
    "SkipLayerNormalization": 5,
    "SkipSimplifiedLayerNormalization": 4,
}
"""Operators of ONNX Runtime, and how many of their first inputs have one floating-point type."""

_FLOATS = frozenset({"tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)"})


def check_types(call: Call, domain: str, inputs: Sequence[Value]) -> None:
    """Raises FB0606 for inputs of one type variable with different types, and for a type that no
    version of the operator takes (floating-point types count as one)."""
    domain = "" if domain == "ai.onnx" else domain
    tensors = [value.data if isinstance(value, Known) else value for value in inputs]
    for i, (tensor, taken) in enumerate(zip(tensors, _taken(call.op, domain), strict=False)):
        if not isinstance(tensor, Tensor) or tensor.is_complex():
            continue
        own = _FLOATS if tensor.is_floating_point() else {f"tensor({_name(tensor)})"}
        if not own & taken:
            kinds = "floating-point" if taken <= _FLOATS else " or ".join(sorted(taken))
            call.refuse(f"input {i} has type {_name(tensor)} and must be {kinds}", "FB0606")
    for group in _of_one_type(call.op, domain, call.opset, len(inputs)):
        names = {_name(t) for i in group if isinstance(t := tensors[i], Tensor)}
        if len(names) > 1:
            call.refuse(f"its inputs have different types: {', '.join(sorted(names))}", "FB0606")


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@cache
def _of_one_type(op: str, domain: str, opset: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Positions of inputs that share a type variable."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return (tuple(range(min(count, _FUSED.get(op, 0)))),)
    last = len(schema.inputs) - 1
    groups: dict[str, list[int]] = {}
    for i in range(count if schema.inputs else 0):
        formal = schema.inputs[min(i, last)]
        if i <= last or formal.is_homogeneous:
            groups.setdefault(formal.type_str, []).append(i)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


@cache
def _taken(op: str, domain: str) -> tuple[frozenset[str], ...]:
    """Return the types that each input may have in any version: files say an older opset than they
    use."""
    if op in _FUSED and (domain, op) not in _versions():
        return (_FLOATS,) * _FUSED[op]
    types: list[set[str]] = []
    for schema in _versions().get((domain, op), []):
        for i, formal in enumerate(schema.inputs):
            if i == len(types):
                types.append(set())
            types[i] |= formal.types
    return tuple(frozenset(kinds) for kinds in types)


@cache
def _versions() -> dict[tuple[str, str], list[Any]]:
    schemas: dict[tuple[str, str], list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    return schemas
