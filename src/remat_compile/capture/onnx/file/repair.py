"""Undo, where the file says how, what the exporter's optimiser did to the parameters.

A default `torch.onnx.export` merges parameters that are equal at the time of export, drops
biases that are zero, and stores transposed copies. Every node still carries the text of the
PyTorch call that it came from, with the parameters' names: from it each parameter is given
back its name, its own storage and its layout. What was multiplied into something else
(BatchNorm into a convolution) or computed away cannot be recovered; `missing` names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ..exporter.record import FX_NODE
from ..weights import KEPT, TorchRecord
from .convert import metadata
from .load import load_weights

_CALL = re.compile(r"target=torch\.ops\.aten\.(\w+)\.\w+\]\(args = \((.*)\), kwargs", re.S)

_SOURCES: dict[tuple[str, str], dict[int, int]] = {
    ("addmm", "Gemm"): {1: 2, 2: 0},
    ("batch_norm", "BatchNormalization"): {1: 1, 2: 2},
    ("conv1d", "Conv"): {1: 1, 2: 2},
    ("conv2d", "Conv"): {1: 1, 2: 2},
    ("conv3d", "Conv"): {1: 1, 2: 2},
    ("convolution", "Conv"): {1: 1, 2: 2},
    ("embedding", "Gather"): {0: 0},
    ("layer_norm", "LayerNormalization"): {1: 2, 2: 3},
    ("linear", "Gemm"): {1: 1, 2: 2},
    ("linear", "MatMul"): {1: 1},
    ("rms_norm", "RMSNormalization"): {1: 2},
}
"""(PyTorch call, ONNX operator) -> ONNX input position: position among the call's arguments."""

_ANY_POSITION = {("linear", "Add"): 2, ("add", "Add"): None, ("mul", "Mul"): None}
"""Commutative ones: the parameter is whichever input is an initialiser."""


@dataclass(slots=True)
class Repair:
    """A note of repairs: parameters given back, and those that are gone."""

    restored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Gone, or tied to one that is there: an optimised file does not say."""


def repair(model: Any, record: TorchRecord, base: Path) -> Repair:
    """Rewrite `model` in place so that its parameters are the original module's."""
    return _Repairer(model, record, base).run()


class _Repairer:
    def __init__(self, model: Any, record: TorchRecord, base: Path):
        self.graph = model.graph
        self.kept = metadata(model, KEPT) is not None
        self.record = record
        self.base = base
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.original = set(self.tensors)
        self.done = Repair()

    def run(self) -> Repair:
        nodes = []
        mentioned: set[str] = set()
        for node in self.graph.node:
            text = metadata(node, FX_NODE) or ""
            mentioned.update(re.findall(r"%(p_\w+)", text))
            nodes += self._mend(node, text)
            nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        self._sweep()
        optimised = self._optimised()
        for short, target in self.record.parameters.items():
            if target not in self.tensors and short in mentioned:
                self.done.missing.append(target)
            elif target not in self.tensors and optimised:
                self.done.absent.append(target)
        return self.done

    def _optimised(self) -> bool:
        """Without traces of the optimiser, a parameter that is absent is tied to another."""
        if self.kept:
            return False
        computed = any(re.fullmatch(r"val_\d+", name) for name in self.original)
        return computed and not any(node.op_type == "Constant" for node in self.graph.node)

    def _mend(self, node: Any, text: str) -> list[Any]:
        """Point the node at its own parameters; returns nodes to put before it."""
        match = _CALL.search(text)
        if match is None:
            return []
        op, args = match.group(1), re.sub(r"\[[^\]]*\]", "[]", match.group(2)).split(", ")
        before = []
        for position, source in self._positions(node, op, args).items():
            short = args[source].strip().removeprefix("%") if source < len(args) else ""
            target = self.record.parameters.get(short)
            if target is not None:
                before += self._point(node, position, target)
        return before

    def _positions(self, node: Any, op: str, args: list[str]) -> dict[int, int]:
        fixed = _SOURCES.get((op, node.op_type))
        if fixed is not None:
            return fixed
        if (op, node.op_type) not in _ANY_POSITION:
            return {}
        source = _ANY_POSITION[op, node.op_type]
        named = [i for i, arg in enumerate(args) if arg.strip().startswith("%p_")]
        stored = [i for i, name in enumerate(node.input) if name in self.tensors]
        if len(stored) != 1 or (source is None and len(named) != 1):
            return {}
        return {stored[0]: named[0] if source is None else source}

    def _point(self, node: Any, position: int, target: str) -> list[Any]:
        current = node.input[position] if position < len(node.input) else ""
        if current == target:
            return []
        if not current:
            return self._zero_bias(node, position, target)
        if current not in self.tensors:
            return []
        turned = node.op_type == "MatMul"
        if target not in self.tensors:
            value = self._array(current)
            self._add(target, value.T if turned else value)
        held, wanted = self._array(current), self._array(target)
        if np.array_equal(held, wanted) and not turned:
            node.input[position] = target
            return []
        if held.ndim == 2 and np.array_equal(held, wanted.T):
            return [self._transposed(node, position, target)]
        return []

    def _transposed(self, node: Any, position: int, target: str) -> Any:
        result = f"{target}/transposed/{node.output[0]}"
        made = onnx.helper.make_node("Transpose", [target], [result], name=result, perm=[1, 0])
        made.metadata_props.extend(node.metadata_props)
        node.input[position] = result
        return made

    def _zero_bias(self, node: Any, position: int, target: str) -> list[Any]:
        """`Gemm` and `Conv` without a bias where the PyTorch call had one: it was zero."""
        weight = node.input[1]
        if target in self.tensors or weight not in self.tensors or len(node.input) != position:
            return []
        value = self._array(weight)
        rows = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
        self._add(target, np.zeros(value.shape[0 if rows else 1], value.dtype))
        node.input.append(target)
        return []

    def _array(self, name: str) -> Any:
        load_weights(self.tensors[name], self.base)
        return onnx.numpy_helper.to_array(self.tensors[name])

    def _add(self, name: str, value: Any) -> None:
        tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(value), name)
        self.graph.initializer.append(tensor)
        self.tensors[name] = self.graph.initializer[-1]
        self.done.restored.append(name)

    def _sweep(self) -> None:
        """Drop initialisers that nothing reads any more."""
        used = {name for node in self.graph.node for name in node.input}
        used |= {value.name for value in self.graph.output}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in used]
        if len(kept) != len(self.graph.initializer) and self.done.restored:
            kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
            del self.graph.initializer[:]
            self.graph.initializer.extend(kept)
            self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
