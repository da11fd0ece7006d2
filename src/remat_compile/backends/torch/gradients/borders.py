"""The graph modules that AOTAutograd wants to see: it reads only their borders (names and fake
values of inputs and outputs), so they hold a single marker node for each result."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, fx

from ....capture.lowered import Lowered
from ....ir.expr import evaluate
from ....ir.graph import ANode
from ....operators.aten import torch_dtype
from ...python.names import symbol_key
from ..code.interface import COPIES, TICKET, Interface


def borders(
    lowered: Lowered,
    joint: fx.GraphModule,
    interface: Interface,
    saved: tuple[str, ...],
    homes: Container[str] = (),
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and backward graph modules as AOTAutograd wants to see them. What is saved of
    `homes` is a copy on the device, and no input."""
    values = _BorderValues(lowered)
    symbols = [symbol_key(s.name) for s in lowered.program.symbols]
    placeholders = joint.graph.find_nodes(op="placeholder")

    forward = fx.Graph()
    known: dict[str, fx.Node] = {}
    for node, name in zip(placeholders, interface.inputs, strict=False):
        copy = _placeholder(forward, node.name, node.meta)
        if name is not None and name not in homes:
            known.setdefault(name, copy)

    def result(name: str | None) -> fx.Node | None:
        if name is None:
            return None
        if name not in known:
            known[name] = forward.call_function(_made_by_generated_code, (name,))
            known[name].meta["val"] = values.of(name)
        return known[name]

    forward.output(tuple(result(n) for n in (*interface.outputs, *saved, *symbols)), type_expr=None)

    backward = fx.Graph()
    for index, name in enumerate((*symbols, *saved)):
        _placeholder(backward, f"saved_{index}", {"val": known[name].meta["val"]})
    for node in placeholders[len(interface.inputs) :]:
        _placeholder(backward, node.name, node.meta)
    grads: list[fx.Node | None] = []
    for name in interface.grads:
        if name is None:
            grads.append(None)
            continue
        grads.append(backward.call_function(_made_by_generated_code, (name,)))
        grads[-1].meta["val"] = values.of(name)  # type: ignore[union-attr]
    backward.output(tuple(grads))
    return (
        fx.GraphModule(torch.nn.Module(), forward),
        fx.GraphModule(torch.nn.Module(), backward),
    )


def _placeholder(graph: fx.Graph, name: str, meta: dict[str, Any]) -> fx.Node:
    node = graph.placeholder(name)
    node.meta.update(meta)
    return node


def _made_by_generated_code(name: str) -> Any:
    """Stands in the border graphs for a value; never runs."""
    raise AssertionError(f"{name}: the border graphs are not meant to run")


class _BorderValues:
    """Fake values of what crosses the border."""

    def __init__(self, lowered: Lowered):
        self._lowered = lowered

    def of(self, name: str) -> Any:
        lowered = self._lowered
        graph = lowered.program.graph
        for symbol in lowered.program.symbols:
            if symbol_key(symbol.name) == name:
                argument = lowered.program.binding.arguments[symbol.argument].name
                return lowered.nodes[argument].meta["val"].shape[symbol.dim]
        if name in graph.anode and graph.anode[name].kind == "rng":
            return self._on_host(evaluate(graph.anode[name].size, {}), torch.uint8)
        if name in (COPIES, TICKET):
            return self._on_host(1, torch.int64)
        if name not in lowered.nodes:  # a packed value
            return self._made(graph.anode[name])
        return lowered.nodes[name].meta["val"]

    def _made(self, a: ANode) -> Tensor:
        """An empty tensor of an aNode that the captured graph has not."""
        sizes = {s.name: self.of(symbol_key(s.name)) for s in self._lowered.program.symbols}
        device = self._lowered.program.header.device
        some = next(n.meta["val"] for n in self._lowered.nodes.values())
        with some.fake_mode:
            shape = [evaluate(extent, sizes) for extent in a.shape]
            return torch.empty(shape, dtype=torch_dtype(a.dtype), device=device)

    def _on_host(self, size: int, dtype: torch.dtype) -> Tensor:
        some = next(n.meta["val"] for n in self._lowered.nodes.values())
        with some.fake_mode:
            return torch.empty(size, dtype=dtype)
