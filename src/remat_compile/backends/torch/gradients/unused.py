"""Outputs that the caller's loss does not use: eager leaves `None` where only they lead.

The backward is given zeros for a tangent that never came. Which are missing is seen
where it begins, and the gradients that depend on these alone are left out.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from ....capture.lowered import Lowered
from ....ir.graph import Graph

_NODE = "CompiledFunctionBackward"


class _BegunMissing(threading.local):
    """Tangents that are missing in the backward that begins on this thread."""

    missing: frozenset[str] = frozenset()


class UnusedOutputs:
    """Knows the tangents behind every gradient, and those missing in this backward."""

    def __init__(self, lowered: Lowered):
        graph, results = lowered.program.graph, lowered.program.binding.results
        tangents = {r.name: r.tangent for r in results if r.tangent is not None}
        often = Counter(lowered.forward_outputs)
        # By output number of the autograd node; an output given twice is taken as used.
        self._outputs = {
            index: tangents[name]
            for index, name in enumerate(lowered.forward_outputs)
            if name in tangents and often[name] == 1
        }
        behind = _tangents_behind(graph, set(tangents.values()))
        self._needs = [
            behind[graph.storage[name]] if name is not None else frozenset()
            for name in lowered.backward_outputs
        ]
        every = frozenset(tangents.values())
        self._can_miss = any(needs and needs != every for needs in self._needs)
        self._begun = _BegunMissing()

    def look(self, tangents: Sequence[Tensor | None]) -> None:
        """Notes which tangents never came to the node of a call."""
        self._begun.missing = frozenset(
            name for index, name in self._outputs.items() if tangents[index] is None
        )

    @property
    def missing(self) -> frozenset[str]:
        """Tangents that never came to the backward that this thread began."""
        return self._begun.missing

    def leave_out(self, grads: Sequence[Any]) -> Sequence[Any]:
        """`grads` with None where all tangents behind a gradient are missing."""
        missing, self._begun.missing = self._begun.missing, frozenset()
        if not missing or not self._can_miss:
            return grads
        return tuple(
            None if needs and needs <= missing else gradient
            for gradient, needs in zip(grads, self._needs, strict=True)
        )


def step_node(outputs: Any, given: Iterable[Any] = ()) -> Node | None:
    """The autograd node that made these outputs; some are views of what it made, and some of what
    it was given, which another step may have made."""
    before = {leaf.grad_fn for leaf in given if isinstance(leaf, Tensor)}
    is_flat = type(outputs) is tuple and all(isinstance(leaf, Tensor) for leaf in outputs)
    for leaf in outputs if is_flat else tree_leaves(outputs):
        node = leaf.grad_fn if isinstance(leaf, Tensor) else None
        while node is not None and node not in before and node.name() != _NODE:
            node = next((below for below, _ in node.next_functions), None)
        if node is not None and node not in before:
            return node
    return None


def _tangents_behind(graph: Graph, tangents: set[str]) -> dict[str, frozenset[str]]:
    """For every aNode, the tangents it is computed from."""
    behind: dict[str, frozenset[str]] = {a.name: frozenset() for a in graph.anodes}
    behind.update({t: frozenset((t,)) for t in tangents})
    for c in graph.cnodes:
        if c.is_loss:
            continue
        sources = frozenset().union(*(behind[name] for name in graph.reads(c)))
        for name in c.results:
            behind[name] = sources
    return behind
