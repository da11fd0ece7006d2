"""Updates of an optimizer, as generated code asks for them by the names of their cNodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from ....ir.graph import CNode, Graph


class Optimizer(Protocol):
    """Does updates in place (`capture/torch/optimizer.py`)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """aNodes of the states, in the order of `tensors`."""
        ...

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters that are updated, by aNode."""
        ...

    def tensors(self) -> list[Tensor]:
        """The states as they are now."""
        ...

    def run(self, name: str, tensors: Sequence[Tensor]) -> None:
        """The update of that name, on what it takes over and reads."""
        ...


class Updates:
    """The updates of one plan; those on the host run in one thread, in the order of issue."""

    def __init__(self, graph: Graph, optimizer: Optimizer) -> None:
        self.graph, self.optimizer = graph, optimizer
        pairs = (pair for c in graph.cnodes if c.is_update for pair in c.takes_over)
        self.ended = {named: ended for ended, named in pairs}
        """The storage of the caller that each updated one lies in."""
        self._changed = {c.name: len(c.results) for c in graph.cnodes if c.is_update}
        self._thread = ThreadPoolExecutor(1, "remat-compile update")

    def of(self, name: str) -> CNode:
        """The cNode of an update."""
        return self.graph.cnode[name]

    def run(self, name: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Does an update now: the tensors that it changed, in order."""
        self.optimizer.run(name, tensors)
        return tensors[: self._changed[name]]

    def begin(
        self, name: str, tensors: Callable[[], Sequence[Tensor]], before: Callable[[], object]
    ) -> Future[None]:
        """Does an update in the thread, after `before`; only then are there its tensors."""

        def run() -> None:
            with torch.no_grad():
                before()
                self.optimizer.run(name, tensors())

        return self._thread.submit(run)
