"""Whether a graph computes what eager computes from gradients in another memory layout.

Eager takes the gradient of a result as it comes. A graph is traced for one layout of each, and a
derivative may choose its operators by it (`reshape` is a view or a copy). So the step is traced
again, without values, for the layout that came: where that gives the same graph, running the
operators of the plan on the gradient as it is, is what eager does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..._torch.lowered import Exported, Lowered
from ..._torch.strides import Strides
from ...ir.expr import Const
from ...ir.graph import CNode
from ...ir.program import Program
from .region import RegionModule

__all__ = ["takes", "without_values"]

_ADD = "aten.add.Tensor"

Lower = Callable[[Exported, Sequence[Strides]], AbstractContextManager[Lowered]]


def takes(
    blueprint: Exported, program: Program, lower: Lower
) -> Callable[[Sequence[Strides]], bool]:
    """Tells of the strides of all tangents whether the graph of `program`, as it was captured,
    takes them as they are. `blueprint` is what was captured, `without_values`."""
    planned = _calls(program)

    def same(tangents: Sequence[Strides]) -> bool:
        try:
            with lower(blueprint, tangents) as lowered:
                return _is_same(planned, _calls(lowered.program))
        except Exception:  # the Python of a model may have gone on since it was captured
            return False

    return same


def without_values(exported: Exported) -> Exported:
    """For a trace long after the call with these arguments is over: holds nothing of them. Call it
    outside of the block of `lower`, in which PyTorch has a mode of its own for fake tensors."""
    mode = FakeTensorMode()

    def fake(t: Tensor) -> Tensor:
        with mode:
            made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        if isinstance(t, nn.Parameter):
            return nn.Parameter(made, requires_grad=t.requires_grad)
        return made.requires_grad_(t.requires_grad)

    args, kwargs = tree_map_only(Tensor, fake, (exported.args, exported.kwargs))
    original = exported.original
    if isinstance(original, RegionModule):
        original = original.copied(fake)
    return replace(
        exported,
        original=original,
        args=args,
        kwargs=kwargs,
        flat_args=tuple(tree_leaves((args, kwargs))),
        trace_args=args,
        trace_kwargs=kwargs,
    )


@dataclass(frozen=True)
class _Calls:
    """Everything that is run, and the bytes of what it makes."""

    calls: tuple[CNode, ...]
    rest: tuple[str, ...]


def _calls(program: Program) -> _Calls:
    """Of a tangent, whose bytes are the caller's, only the name counts."""
    graph, nothing = program.graph, Const(0)
    held = [
        repr((a.name, a.kind, a.dtype, None if a.kind == "tangent" else (a.shape, a.size)))
        for a in graph.anodes
    ]
    calls = [replace(c, loc=None, time_ns=None, workspace=nothing) for c in graph.cnodes]
    views = [repr(view) for view in graph.views]
    return _Calls(tuple(calls), (*held, *views, repr(program.binding)))


def _is_same(planned: _Calls, relaid: _Calls) -> bool:
    if planned.rest != relaid.rest or len(planned.calls) != len(relaid.calls):
        return False
    return all(map(_runs_the_same, planned.calls, relaid.calls))


def _runs_the_same(planned: CNode, relaid: CNode) -> bool:
    """A sum in a storage of its own gives what a sum into its first operand gives. (Not the other
    way round: the layout of the first operand need not be that of the sum.)"""
    call = planned.call
    if relaid.is_accumulate and not planned.is_accumulate and call.op == _ADD and not call.kwargs:
        same_operands = sorted(map(repr, call.args)) == sorted(map(repr, relaid.call.args))
        return same_operands and repr(replace(relaid, call=call)) == repr(planned)
    return repr(planned) == repr(relaid)
