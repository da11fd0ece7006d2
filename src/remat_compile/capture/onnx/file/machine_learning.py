"""The linear operators and scalers of `ai.onnx.ml`, as ordinary nodes.

Their coefficients are attributes; as initialisers `NODE.coefficients` and `NODE.intercepts` they
are trained. Offsets and scales of `Scaler` describe the data and stay constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ....ir.diagnostics import Diagnostic, FBError
from ..call import ML

_POST = {"NONE": None, "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}


def spread_machine_learning(model: Any) -> None:
    """Rewrite every such node of the main graph, in place. Raises FB0612."""
    graph = model.graph
    if not any(node.domain == ML and node.op_type in SPREAD for node in graph.node):
        return
    nodes: list[Any] = []
    for node in graph.node:
        if node.domain == ML and node.op_type in SPREAD:
            nodes += SPREAD[node.op_type](graph, node, _Attributes(node))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


class _Attributes:
    """Attributes of a node, with the name that its initialisers begin with."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.name = node.name or node.output[0] or node.op_type
        self.given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def floats(self, name: str) -> Any:
        return np.asarray(self.given.get(name, []), np.float32)

    def refused(self, reason: str) -> FBError:
        message = f'node "{self.name}" ({ML}.{self.node.op_type}): {reason}'
        return FBError(Diagnostic("FB0612", message))

    def post(self) -> str | None:
        text = self.given.get("post_transform", b"NONE").decode()
        if text not in _POST:
            raise self.refused(f"post_transform {text}; supported: {', '.join(_POST)}")
        return _POST[text]


def _constant(name: str, array: Any) -> Any:
    value = onnx.numpy_helper.from_array(np.asarray(array), name)
    return onnx.helper.make_node("Constant", [], [name], value=value)


def _scaler(graph: Any, node: Any, given: _Attributes) -> list[Any]:
    offset, scale = f"{given.name}.offset", f"{given.name}.scale"
    x, moved = f"{given.name}.float", f"{given.name}.moved"
    return [
        _constant(offset, given.floats("offset")),
        _constant(scale, given.floats("scale")),
        onnx.helper.make_node("Cast", [node.input[0]], [x], to=1),
        onnx.helper.make_node("Sub", [x, offset], [moved]),
        onnx.helper.make_node("Mul", [moved, scale], [node.output[0]], name=given.name),
    ]


def _linear(graph: Any, node: Any, given: _Attributes, rows: int, result: str) -> list[Any]:
    """`result = post(x coefficients' + intercepts)`."""
    flat = given.floats("coefficients")
    if not rows or flat.size % rows:
        raise given.refused(f"{flat.size} coefficients for {rows} targets")
    x, raw, post = f"{given.name}.float", f"{given.name}.raw", given.post()
    bias = given.floats("intercepts")
    if bias.size != rows:
        if bias.size:
            raise given.refused(f"{bias.size} intercepts for {rows} targets")
        bias = np.zeros(rows, np.float32)
    for suffix, array in (("coefficients", flat.reshape(rows, -1)), ("intercepts", bias)):
        graph.initializer.append(onnx.numpy_helper.from_array(array, f"{given.name}.{suffix}"))
    weights = [f"{given.name}.coefficients", f"{given.name}.intercepts"]
    total = raw if post else result
    made = [
        onnx.helper.make_node("Cast", [node.input[0]], [x], to=1),
        onnx.helper.make_node("Gemm", [x, *weights], [total], name=given.name, transB=1),
    ]
    return [*made, onnx.helper.make_node(post, [raw], [result])] if post else made


def _regressor(graph: Any, node: Any, given: _Attributes) -> list[Any]:
    return _linear(graph, node, given, int(given.given.get("targets", 1)), node.output[0])


def _classifier(graph: Any, node: Any, given: _Attributes) -> list[Any]:
    """Scores; the label is that of the largest score, and only integer labels can be given."""
    labels = given.given.get("classlabels_ints", [])
    count = len(labels) or len(given.given.get("classlabels_strings", []))
    if given.floats("intercepts").size not in (0, count):
        raise given.refused("fewer rows of coefficients than classes are not supported")
    scores = (node.output[1] if len(node.output) > 1 else "") or f"{given.name}.scores"
    made = _linear(graph, node, given, count, scores)
    if node.output[0] and labels:
        table, best = f"{given.name}.labels", f"{given.name}.best"
        made += [
            _constant(table, np.asarray(labels, np.int64)),
            onnx.helper.make_node("ArgMax", [scores], [best], axis=1, keepdims=0),
            onnx.helper.make_node("Gather", [table, best], [node.output[0]]),
        ]
    return made


SPREAD = {"LinearClassifier": _classifier, "LinearRegressor": _regressor, "Scaler": _scaler}
"""Operators that are rewritten."""
