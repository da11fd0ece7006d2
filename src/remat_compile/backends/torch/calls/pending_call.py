"""A call of a planned step that waits for its backward, and what its autograd node is asked."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ....capture.trace.autocast import Autocast
from ....device.memory import Mark
from ....ir.diagnostics import Diagnostic, FBError
from ..gradients.layouts import LayoutWatch
from ..gradients.unused import UnusedOutputs, step_node
from .caller_memory import CallerMemory
from .refusals import BackwardGuards


class _Ways:
    """The ways of one model: its plans for different shapes and numbers."""

    def __init__(self) -> None:
        self.waiting: dict[int, weakref.ref[Any]] = {}
        """The node of the last call of each that had no backward yet."""
        self.warned = False

    def is_any_waiting(self) -> bool:
        return any(node() is not None for node in [*self.waiting.values()])


class Flight:
    """State that the generated functions and the module share while a step runs.

    Knows whether a forward still waits for its backward: the bound covers one call at a
    time. `mark`, when set, is entered around each of the two functions (to measure them). A node
    that calls `begin` itself (`is_begun_by_node`) is given no hook for it. `is_step` says that a
    whole training step runs, whose backward may update parameters.
    """

    def __init__(
        self,
        guards: BackwardGuards,
        unused: UnusedOutputs,
        layouts: LayoutWatch,
        memory: CallerMemory,
    ) -> None:
        self._guards = guards
        self.unused = unused
        self.layouts = layouts
        self.memory = memory
        self.mark: Mark | None = None
        self.is_begun_by_node = self.is_step = False
        self._ways = _Ways()

    def join(self, first: Flight) -> None:
        """It is another way of the same model."""
        self._ways = first._ways

    def end(self) -> None:
        self._ways.waiting.pop(id(self), None)

    def start(self, outputs: Any, given: Iterable[Any], autocast: Autocast) -> None:
        """Warns once if the graph of an earlier forward, of any way, is still alive and unused."""
        ways = self._ways
        if not ways.warned and ways.is_any_waiting():
            ways.warned = True
            message = (
                "remat-compile: a second forward runs before the backward of the first; "
                "the memory bound covers one call in flight"
            )
            if autocast.dtype is not None and autocast.caches_weights:
                message += (
                    "; forwards in one autocast block share the casts of weights in eager and not "
                    "here, so gradients of their sum may differ: give each a block of its own"
                )
            warnings.warn(message, stacklevel=4)
        node = self.watch(outputs, given)
        if node is not None:
            ways.waiting[id(self)] = weakref.ref(node)

    def watch(self, outputs: Any, given: Iterable[Any]) -> Node | None:
        """Hooks the autograd node that made these outputs of one call, and gives it."""
        # What a node of our own gives is never a view of what it was given.
        node = step_node(outputs, () if self.is_begun_by_node else given)
        if node is not None:
            if not self.is_begun_by_node:
                node.register_prehook(self.begin)
                self.layouts.watch(node, outputs)
            self.memory.watch(node)
        return node

    def begin(self, gradients: Sequence[Tensor | None]) -> None:
        """A backward begins, with these gradients of what the node gave."""
        _refuse_create_graph()
        self._guards.check()
        self.unused.look(gradients)


def _refuse_create_graph() -> None:
    if torch.is_grad_enabled():
        message = "create_graph=True: the backward of a planned step cannot be differentiated again"
        hint = "compute that term with the model itself, which shares its parameters"
        raise FBError(Diagnostic("FB0949", message, hint=hint))
