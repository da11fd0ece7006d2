"""Weights that stand in `Constant` and `ConstantOfShape` nodes instead of initialisers.

Converters of other frameworks write them so. Where the file has no record of PyTorch's
exporter, one that a node reads as its weight is trained; another is named in a warning.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ..weights import FLOATS, STATISTICS, WEIGHT_INPUTS, Role, is_finite, uses_of

_LAYOUT = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators through which a weight stays a weight."""

_ARITHMETIC = frozenset({"Add", "Div", "MatMul", "Mul", "Sub"})


@dataclass(frozen=True, slots=True)
class NodeWeights:
    """Results of `Constant` and `ConstantOfShape` nodes that hold, or may hold, weights."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    doubtful: Sequence[str] = ()
    """Not trained, though arithmetic on them suggests a scale or bias."""

    def among(self, names: Container[str]) -> NodeWeights:
        """Without what stands in branches that are not taken."""
        roles = {name: role for name, role in self.roles.items() if name in names}
        return NodeWeights(roles, [name for name in self.doubtful if name in names])


def node_weights(graph: Any, patterns: Sequence[str] | None) -> NodeWeights:
    """Return the role of each floating-point tensor made by such a node; `patterns` decide
    alone."""
    uses = uses_of(graph)
    roles: dict[str, Role] = {}
    doubtful = []
    for name in float_results(graph):
        places = _places(name, uses)
        if places and places <= STATISTICS:
            roles[name] = Role.STATISTIC
        elif patterns is not None:
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                roles[name] = Role.TRAINED
        elif places & WEIGHT_INPUTS:
            roles[name] = Role.TRAINED
        elif any(op in _ARITHMETIC for op, _ in places):
            doubtful.append(name)
    return NodeWeights(roles, doubtful)


def float_results(graph: Any) -> list[str]:
    """Names of finite floating-point tensors of more than one element made by such nodes."""
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    nodes = list(_outside_loops(graph))
    for node in nodes:
        value = _attribute(node, "value")
        if node.op_type == "Constant" and value is not None and len(node.output) == 1:
            shapes[node.output[0]] = value.t
    return [node.output[0] for node in nodes if len(node.output) == 1 and _is_weight(node, shapes)]


def _outside_loops(graph: Any) -> Iterator[Any]:
    """The nodes that run once at most: those of the graph, and of branches in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute if node.op_type == "If" else ():
            yield from _outside_loops(attribute.g)


def _is_weight(node: Any, shapes: Mapping[str, Any]) -> bool:
    value = _attribute(node, "value")
    if node.op_type == "Constant" and value is not None:
        tensor = value.t
        return tensor.data_type in FLOATS and np.prod(tensor.dims) > 1 and is_finite(tensor)
    if node.op_type != "ConstantOfShape" or not node.input or node.input[0] not in shapes:
        return False
    shape = shapes[node.input[0]]
    return (
        (value is None or value.t.data_type in FLOATS)
        and shape.data_location != onnx.TensorProto.EXTERNAL
        and bool(np.prod(onnx.numpy_helper.to_array(shape).astype(np.float64)) > 1)
    )


def _attribute(node: Any, name: str) -> Any:
    return next((a for a in node.attribute if a.name == name), None)


def _places(name: str, uses: Mapping[str, Sequence[tuple[Any, int]]]) -> set[tuple[str, int]]:
    """Where a value is read, through operators that only move it."""
    places: set[tuple[str, int]] = set()
    pending, seen = [name], {name}
    while pending:
        for node, position in uses.get(pending.pop(), []):
            if node.op_type not in _LAYOUT:
                places.add((node.op_type, position))
                continue
            pending += [n for n in node.output if position == 0 and n not in seen]
            seen.update(node.output)
    return places
