"""Sums of gradients that may reuse the storage of their first operand."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from .prepare import is_backward, output_nodes, tensors_of

_ADD = torch.ops.aten.add.Tensor


class Accumulations:
    """Decides which sums of the backward become accumulations.

    A sum qualifies when one operand is a whole, dense storage that a backward
    computation of the graph made, that no result of the step needs, and that nothing
    reads after the sum. Order and bits are those of the capture.
    """

    def __init__(self, graph: fx.Graph):
        self._position = {node: index for index, node in enumerate(graph.nodes)}
        self._last_read: dict[int, int] = {}
        self._reserved: set[int] = set()
        self._writer: dict[int, fx.Node] = {}
        for node in graph.nodes:
            if node.op == "output":
                continue
            for value in tensors_of(node):
                self._writer.setdefault(value.untyped_storage()._cdata, node)
            for source in node.all_input_nodes:
                for value in tensors_of(source):
                    key = value.untyped_storage()._cdata
                    self._last_read[key] = self._position[node]
        for result in output_nodes(graph):
            if isinstance(result, fx.Node):
                self._reserved.update(v.untyped_storage()._cdata for v in tensors_of(result))

    def is_accumulation(self, node: fx.Node) -> bool:
        return self._first(node) is not None

    def operands(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The operand whose storage goes on, and the one that is added (a + b == b + a)."""
        first = self._first(node)
        a, b = node.args[:2]
        assert isinstance(a, fx.Node)
        assert isinstance(b, fx.Node)
        return (a, b) if first is a else (b, a)

    def _first(self, node: fx.Node) -> fx.Node | None:
        if node.target is not _ADD or not is_backward(node) or node.kwargs or len(node.args) != 2:
            return None
        a, b = node.args
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
            return None
        va, vb, out = a.meta["val"], b.meta["val"], node.meta["val"]
        if va.untyped_storage()._cdata == vb.untyped_storage()._cdata or not _alike(va, vb):
            return None
        for operand, value in ((a, va), (b, vb)):
            if self._owned(operand, value, node) and _same_layout(value, out):
                return operand
        return None

    def _owned(self, operand: fx.Node, value: Tensor, reader: fx.Node) -> bool:
        key = value.untyped_storage()._cdata
        writer = self._writer[key]
        direct = operand is writer or (
            operand.target is operator.getitem and operand.args[0] is writer
        )
        return (
            direct
            and writer.op == "call_function"
            and is_backward(writer)
            and key not in self._reserved
            and self._last_read[key] == self._position[reader]
        )


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and str(tuple(a.shape)) == str(tuple(b.shape))


def _same_layout(a: Tensor, b: Tensor) -> bool:
    nbytes = a.untyped_storage().nbytes()
    return (
        _alike(a, b)
        and str(a.stride()) == str(b.stride())
        and str(a.numel() * a.element_size()) == str(nbytes)
    )
