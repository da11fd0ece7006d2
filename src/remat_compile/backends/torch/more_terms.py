"""Gradients of leaves to which autograd adds terms from outside of the step.

A parameter that the model reads twice has a sum as its gradient, and where the loop reads it once
more (a penalty on `model.w`), autograd adds that behind the step: (a + b) + c, where eager adds the
three in the order in which they come. The sum may round otherwise.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..._torch.lowered import Lowered
from ...ir.diagnostics import Diagnostic, render
from ...ir.graph import Graph

__all__ = ["MoreTerms"]

_ADDITIONS = ("aten.add.Tensor", "aten.add_.Tensor")
_OTHERWISE = (RuntimeError, AttributeError, NotImplementedError)
"""What tensors of another layout or class raise."""
_SHOWN = 5
"""Names in a message; of more, the number is given."""


class _BegunLeaves(threading.local):
    """The leaves of the backward that begins on this thread, by the place of their gradients."""

    leaves: dict[int, Tensor] | None = None


class MoreTerms:
    """Sees where a gradient that the step sums is not all that arrives at its leaf (FB0526).

    It is looked at in the first, second, fourth, eighth backward and so on, until it is reported.
    """

    def __init__(self, lowered: Lowered):
        program = lowered.program
        summed = _sums(program.graph)
        paths = [*lowered.joint.held(), *(a.path for a in program.binding.arguments)]
        grads = lowered.backward_outputs
        self._paths = {
            place: path
            for place, (path, grad) in enumerate(zip(paths, grads, strict=False))
            if grad is not None and program.graph.storage.get(grad, grad) in summed
        }
        self._size = len(grads)
        self._calls = 0
        self._begun = _BegunLeaves()

    def watch(self, node: Node) -> None:
        """Hooks the node of a call, where there are such sums."""
        if not self._paths or not self._is_due(self._calls + 1):
            return
        edges = node.next_functions  # made anew at each look
        if len(edges) != self._size:
            return
        leaves = {}
        for place in self._paths:
            below = edges[place][0]
            leaf = getattr(below, "variable", None)
            if isinstance(leaf, Tensor):
                leaves[place] = leaf
        node.register_prehook(partial(self._begin, leaves))

    @staticmethod
    def _is_due(call: int) -> bool:
        return not call & (call - 1)

    def _begin(self, leaves: dict[int, Tensor], _: Any) -> None:
        self._begun.leaves = leaves

    def look(self, grads: Sequence[Any]) -> None:
        """At what arrives at the leaves of these gradients, which the step gives now."""
        if not self._paths:
            return
        leaves, self._begun.leaves = self._begun.leaves, None
        self._calls += 1
        if not leaves or not self._is_due(self._calls):
            return
        summed: list[str] = []
        with suppress(*_OTHERWISE):
            for place, leaf in leaves.items():
                if isinstance(grads[place], Tensor):
                    _hook(leaf, grads[place], partial(summed.append, self._paths[place]))
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(partial(self._report, summed))

    def _report(self, paths: list[str]) -> None:
        """At the end of a backward, once."""
        if not paths or not self._paths:
            return
        self._paths = {}
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        message = (
            f"{', '.join(paths[:_SHOWN])}{more}: the step gives a gradient, and something outside "
            "of it another; their sum may round otherwise than in eager"
        )
        hint = "compute that term in the model, as a part of its loss"
        diagnostic = Diagnostic("FB0526", message, hint=hint)
        warnings.warn(render(diagnostic, level="warning"), stacklevel=2)


def _hook(leaf: Tensor, gradient: Tensor, report: Callable[[], None]) -> None:
    """Reports, once, where another gradient arrives at a leaf. Hooks that the user put on it run
    before, and may change what arrives: such a leaf is not looked at."""
    if leaf._backward_hooks:
        return
    given = gradient.data_ptr(), gradient._version
    task = torch._C._current_graph_task_id()

    def arrived(total: Tensor) -> None:
        handle.remove()
        if torch._C._current_graph_task_id() != task:
            return
        with suppress(*_OTHERWISE):
            if (total.data_ptr(), total._version) != given:
                report()

    handle = leaf.register_hook(arrived)  # type: ignore[no-untyped-call]


def _sums(graph: Graph) -> set[str]:
    """Names of what is added up from several terms."""
    return {
        graph.storage.get(name, name)
        for c in graph.cnodes
        if not c.is_loss and (c.is_accumulate or c.call_at(1).op in _ADDITIONS)
        for name in c.results
    }
