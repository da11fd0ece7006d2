"""Memory of the caller that a plan reads in its backward: written to in between, or packed by hooks
on saved tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ....ir.diagnostics import Diagnostic, FBError, render
from ....ir.program import Program
from ....ir.schedule import Compute, Schedule
from ..code.interface import Interface

KEEP = "write to it after the backward, give a copy (x.clone()), or plan with a larger budget"


class CallerMemory:
    """Tells once of memory whose changes PyTorch does not count, and of hooks on saved tensors; and
    names a tensor that was written to between forward and backward. `saved` are the names of what
    the forward saves."""

    def __init__(
        self, program: Program, schedule: Schedule, interface: Interface, saved: Sequence[str]
    ) -> None:
        binding = program.binding
        self._paths = {p.name: p.names[0] for p in binding.params}
        self._paths |= {b.name: b.names[0] for b in binding.buffers}
        self._paths |= {a.name: a.path for a in binding.arguments}
        self._saved = saved
        again = set(_read_again(program, schedule)) - {p.name for p in binding.params}
        places = enumerate(interface.inputs)
        self._again = [(at, name) for at, name in places if name in again & self._paths.keys()]
        self._has_told_hooks = False

    def look(self, given: Sequence[Any]) -> None:
        """FB0960 and FB0961, of what a call is given."""
        for at, name in self._again:
            if isinstance(given[at], Tensor) and not given[at].untyped_storage().resizable():
                self._again = []
                message = (
                    f"{self._paths[name]} lies in memory that is not PyTorch's (of NumPy, a file), "
                    "and the backward reads it again: what is written there in between is not seen"
                )
                _warn("FB0960", message, KEEP)
                break
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if hooks is None or self._has_told_hooks:
            return
        if not str(getattr(hooks[0], "__module__", "")).startswith("torch."):
            self._has_told_hooks = True
            message = (
                "saved_tensors_hooks around a planned step get what the plan saves, which is not "
                "what eager saves: where they lose bits, gradients are others than in eager"
            )
            _warn("FB0961", message, "use hooks that give back what they were given")

    def watch(self, node: Node) -> None:
        """Lets the backward of this node, and of those made like it, say what was written to."""
        function: Any = node._forward_cls  # type: ignore[attr-defined]
        inner = function.backward
        if hasattr(inner, "is_watched"):
            return

        def backward(ctx: Any, *gradients: Any) -> Any:
            try:
                return inner(ctx, *gradients)
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):
                    raise
                raise FBError(self._written_to(ctx)) from error

        backward.is_watched = True  # type: ignore[attr-defined]
        function.backward = staticmethod(backward)

    def _written_to(self, ctx: Any) -> Diagnostic:
        names = []
        for name, saved in zip(self._saved, ctx._raw_saved_tensors, strict=False):
            try:
                saved.unpack()
            except RuntimeError:
                names.append(self._paths.get(name, f"%{name}"))
        message = (
            f"{', '.join(names) or 'a tensor'} was written to between the forward and the backward "
            "of a planned step, which reads it again"
        )
        return Diagnostic("FB0962", message, hint=KEEP)


def _read_again(program: Program, schedule: Schedule) -> Iterator[str]:
    """Storages that forward computations read after the loss."""
    graph, is_behind = program.graph, False
    for step in schedule.elementary.steps:
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            is_behind |= c.is_loss
            if is_behind and c.phase == "fwd":
                yield from (graph.storage[name] for name in graph.reads(c))


def _warn(code: str, message: str, hint: str) -> None:
    warnings.warn(render(Diagnostic(code, message, hint=hint), level="warning"), stacklevel=5)
