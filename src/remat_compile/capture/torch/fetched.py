"""Eager, and the graph, of a model whose parameters do not lie where the step runs.

Each parameter comes for one computation and goes again, so that all of them never lie there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ...device.shards import whole
from ...ir.program import Program
from ...ir.schedule import Compute, Free, Home, Offload, Prefetch, Step, Wait
from ..lowered import Exported

_HOST = torch.device("cpu")


class _Fetch(torch.autograd.Function):
    """A parameter on the device; its gradient goes to the host."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, parameter: Tensor, device: torch.device) -> Tensor:
        return whole(parameter, device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].to(_HOST), None, None


class _Fetching(TorchFunctionMode):
    """Gives functions of PyTorch a parameter where they are called with it, and keeps none for the
    backward."""

    def __init__(self, leaves: Mapping[int, Tensor], device: torch.device):
        super().__init__()
        self._leaves, self._device = leaves, device
        self._there: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(nn.Parameter, self._fetch, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fetch(self, parameter: nn.Parameter) -> Tensor:
        leaf = self._leaves.get(id(parameter))
        if leaf is None:
            return parameter
        made: Tensor = _Fetch.apply(leaf, parameter, self._device)  # type: ignore[no-untyped-call]
        self._there[made.untyped_storage()._cdata] = weakref.ref(made), parameter
        return made

    def pack(self, tensor: Tensor) -> Any:
        """The way to make a view of a parameter again."""
        made, parameter = self._there.get(tensor.untyped_storage()._cdata, (lambda: None, None))
        if parameter is None or made() is None:
            return tensor
        return parameter, (tensor.shape, tensor.stride(), tensor.storage_offset())

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        parameter, form = packed
        return whole(parameter, self._device).as_strided(*form)


@contextmanager
def fetching(exported: Exported) -> Iterator[Mapping[int, Tensor]]:
    """Inside, the model runs on its device; what its parameters' gradients belong to, by
    identity: tensors of their shape, without memory."""
    if not exported.is_away:
        yield {}
        return
    leaves = {
        id(p): torch.zeros((), dtype=p.dtype).expand(p.shape).requires_grad_(p.requires_grad)
        for p in exported.original.parameters()
    }
    mode = _Fetching(leaves, exported.device)
    with mode, saved_tensors_hooks(mode.pack, mode.unpack):
        yield leaves


def fetched(program: Program, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, with each parameter at home on the host but for its computations; its gradient
    goes there."""
    graph, binding = program.graph, program.binding
    homes = {p.name for p in binding.params}
    gradients = {graph.storage[p.grad] for p in binding.params if p.grad is not None}
    yield from map(Home, sorted(homes | gradients))
    there = [*steps]
    last = {
        name: at
        for at, step in enumerate(there)
        if isinstance(step, Compute)
        for name in (*graph.reads(graph.cnode[step.cnode]), *graph.cnode[step.cnode].results)
        if name in gradients
    }
    for at, step in enumerate(there):
        reads = graph.reads(graph.cnode[step.cnode]) if isinstance(step, Compute) else ()
        brought = sorted(homes.intersection(reads))
        for name in brought:
            yield from (Prefetch(name), Wait(name))
        yield step
        yield from map(Free, brought)
        for name in sorted(gradients):
            if last.get(name) == at:
                yield from (Offload(name), Wait(name), Free(name))
