"""One graph of TorchDynamo's at run time: planned for each kind of call, or run as it is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from ..capture.guards.dynamo import global_hooks
from ..capture.torch import sources_of
from ..capture.trace.places import is_users
from ..ir.diagnostics import Diagnostic, fail, render
from .session import Part, Session

MOST_KINDS = 8
"""Kinds of calls (shapes, numbers) of one region that are planned; others run in eager."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class CapturedRegion:
    """Called in place of a graph. TorchDynamo guards everything that is fixed in it."""

    def __init__(self, graph: fx.GraphModule, session: Session):
        self._graph = graph
        self._sources = sources_of(graph)
        self._session = session
        self._hooks = global_hooks()
        self._parts: dict[Any, Part] = {}
        self._name = session.name_of_region(_place(graph))
        placeholders = graph.graph.find_nodes(op="placeholder")
        is_number = [not _is_tensor(node) for node in placeholders]
        self._varies = any(is_number)
        self._numbers = [at for at, yes in enumerate(is_number) if yes]
        self._items = [
            at
            for at, node in enumerate(placeholders)
            if any(user.op == "call_method" and user.target == "item" for user in node.users)
        ]
        self._outside = [
            at
            for at, node in enumerate(placeholders)
            if _is_tensor(node) and not _is_parameter(node)
        ]

    def __call__(self, *inputs: Any) -> Any:
        """Runs the region; FBError FB0910 where hooks of all modules are others than at first."""
        if self._hooks != global_hooks():
            message = "hooks of all modules were added or removed since the regions were compiled"
            fail("FB0910", message, hint="torch.compiler.reset(), then torch.compile it again")
        if not torch.is_grad_enabled() or not any(map(_requires_grad, inputs)):
            return self._graph(*inputs)
        part = self._part(inputs)
        if part is None:
            return self._graph(*inputs)
        if part.is_eager:
            return self._session.run_eagerly(part, inputs)
        return self._session.run(part, inputs)

    def _part(self, inputs: Sequence[Any]) -> Part | None:
        key = self._key(inputs)
        if key not in self._parts:
            if len(self._parts) == MOST_KINDS:
                self._warn_of_many()
            if len(self._parts) >= MOST_KINDS:
                return None
            name = self._name if not self._parts else f"{self._name}, shapes {len(self._parts) + 1}"
            self._parts[key] = self._session.part_of(name, self._graph, self._sources, inputs)
        return self._parts[key]

    def _key(self, inputs: Sequence[Any]) -> Any:
        """Return a key that tells two kinds of calls apart, beside what is guarded."""
        if not self._varies and not self._items:
            return None
        return (
            tuple(inputs[at] for at in self._numbers),
            tuple(inputs[at].item() for at in self._items),
            tuple((inputs[at].shape, inputs[at].stride()) for at in self._outside),
        )

    def _warn_of_many(self) -> None:
        self._parts[object()] = Part.eager(self._name, "too many shapes")  # once
        message = f"{self._name} is called with more than {MOST_KINDS} kinds of shapes or numbers"
        hint = "pad to a few sizes; further ones run in eager, without a bound"
        diagnostic = Diagnostic("FB0957", message, hint=hint)
        warnings.warn(render(diagnostic, level="warning"), stacklevel=4)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), Tensor)


def _is_parameter(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.nn.Parameter)


def _place(graph: fx.GraphModule) -> str:
    """File and line of the user's where the graph begins."""
    for node in graph.graph.nodes:
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        users = [f for f in frames if is_users(f[0])]
        if node.op not in ("placeholder", "output") and users:
            file, line = users[-1]
            return f"{Path(file).name}:{line}"
    return ""
