"""Times by roofline: nothing is run, and the device need not be there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ir.expr import evaluate
from ..ir.graph import DTYPE_BYTES, LOSS_OP, Call, CNode, Graph
from ..ir.program import Program
from ._flops import flops_of
from ._shapes import Shape, shapes_of
from .device import Device


def roofline(program: Program, device: Device) -> Program:
    """The program with the time of each cNode on `device`, at the sample of the symbols.

    Time = max(operations / peak of the dtype, bytes read and written / bandwidth) + launch
    overhead. Workspace stays as the capture left it: the bytes of unused results, and 0
    otherwise (`assumptions` says so). The target becomes the device.
    """
    model = _RooflineModel(program.graph, device, program.sample)
    cnodes = tuple(model.costed(c) for c in program.graph.cnodes)
    return replace(
        program,
        graph=replace(program.graph, cnodes=cnodes),
        header=replace(program.header, costs="roofline"),
        target=device.target,
        proven=(),
    )


class _RooflineModel:
    def __init__(self, graph: Graph, device: Device, env: Mapping[str, int]):
        self.graph = graph
        self.device = device
        self.env = env
        self.shapes = shapes_of(graph, env)

    def costed(self, c: CNode) -> CNode:
        if c.call.op == LOSS_OP:
            return replace(c, time_ns=0)
        first = self._time_ns(c.call, c.writes)
        if c.replay is None:
            return replace(c, time_ns=first)
        again = self._time_ns(c.replay.call, c.replay.writes)
        return replace(c, time_ns=first, replay=replace(c.replay, time_ns=again))

    def _time_ns(self, call: Call, writes: Sequence[str | None]) -> int:
        results = [name for name in writes if name is not None]
        shapes = [self.shapes[name] for name in results]
        dtype = self.graph.anode[results[0]].dtype if results else "f32"
        operations = flops_of(call, self.shapes, shapes, self.env)
        moved = sum(self._bytes(name) for name in results) + self._read(call, shapes)
        seconds = max(
            operations / self.device.peak_flops_per_s(dtype),
            moved / self.device.memory_bytes_per_s,
        )
        return math.ceil(seconds * 1e9) + self.device.launch_ns

    def _read(self, call: Call, results: Sequence[Shape]) -> int:
        """Bytes read: of a view no more than its elements, of a table that is looked up no
        more than what comes out of it."""
        total = sum(self._bytes(name) for name in call.refs())
        if call.op.split(".")[1:2] in (["embedding"], ["gather"], ["index"], ["index_select"]):
            table, *rest = call.refs()
            picked = sum(math.prod(shape) for shape in results) * self._item(table)
            total = min(self._bytes(table), picked) + sum(self._bytes(name) for name in rest)
        return total

    def _bytes(self, name: str) -> int:
        """Bytes that a read or write of this aNode or view touches."""
        storage = self.graph.anode[self.graph.storage[name]]
        elements = math.prod(self.shapes[name])
        return min(elements * self._item(name), evaluate(storage.size, self.env))

    def _item(self, name: str) -> int:
        return DTYPE_BYTES[self.graph.anode[self.graph.storage[name]].dtype]
