"""What is kept of a fused step beside its plan: what it was fused from, and how what its kernels
read lies in memory, so that they are made without a capture.

The fused program is held against the other one and proven again, within the budget that was asked
for, which is a share of what the other takes; its kernels are held against their calls again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._torch.callable import callable_op
from ..._torch.ops import from_torch_dtype, to_torch, torch_dtype
from ..._torch.shadows import Unseen
from ...ir.diagnostics import Diagnostic
from ...ir.expr import evaluate
from ...verifier.same_values import instances
from ..budget import Baseline, resolve_budget
from ..fuse import as_before, what_was_fused
from ..plan import Plan
from ..plan_cache import one_plan
from ..regions import has_regions, lacking, new_kernels

if TYPE_CHECKING:
    from ..._torch.lowered import Lowered
    from ...ir.graph import View
    from ...ir.program import Program
    from ..request import PlanRequest

__all__ = ["FusedEntry", "FusedStart"]


@dataclass(frozen=True)
class FusedStart:
    """A fused plan that was proven again, with its kernels; tensors like those that they read, by
    name and without values; and what is to be said."""

    plan: Plan
    nodes: Mapping[str, Any]
    warning: Diagnostic


@dataclass(frozen=True)
class FusedEntry:
    """`of` is the program that was fused, with its schedule, as text; `layouts` are shape, strides
    and type of what kernels read, views by what they are of, by the names there."""

    of: str
    layouts: Mapping[str, list[Any]]

    @staticmethod
    def kept(plan: Plan, lowered: Lowered) -> FusedEntry | None:
        """None for a plan without regions. ValueError where what it was fused from is not known."""
        from ...ir.text.printer import format_program

        if not has_regions(plan.program):
            return None
        if plan._fused_from is None:
            raise ValueError("what the plan was fused from is not known")
        original = plan._fused_from.program
        origins = _names(original, plan.program)
        values = {name: lowered.nodes[name].meta["val"] for name in origins.values()}
        storage = original.graph.storage
        names = sorted({storage[name] for name in values})
        layouts = {name: _layout(lowered.nodes[name].meta["val"]) for name in names}
        return FusedEntry(format_program(original), layouts)

    def start(self, program: Program, request: PlanRequest, name: str) -> FusedStart:
        """ValueError where it is another step or has other kernels; Unseen where there are none
        here, or not within the time limit: the model is captured then, which says so."""
        original = one_plan(self.of, name)
        budget = None
        if request.budget is not None:
            budget = resolve_budget(request.budget, Baseline.of(original))
        plan = Plan(original, original.schedules[0], budget)
        by_name = _names(original, program)
        tensors = self._tensors(original, {*by_name.values()})
        kernels = new_kernels(original)
        done = as_before(plan, program, request, kernels, tensors)
        if isinstance(done, str):
            if lacking(original):  # asked last: what is kept needs no compiler
                raise Unseen("no kernels can be made here")
            raise ValueError(done)
        if isinstance(done, Diagnostic):
            raise Unseen(done.message)
        nodes = {ref: SimpleNamespace(meta={"val": tensors[of]}) for ref, of in by_name.items()}
        return FusedStart(done, nodes, what_was_fused(plan, done, kernels))

    def _tensors(self, original: Program, names: set[str]) -> Mapping[str, Tensor]:
        """Those of the names, and views of them. ValueError for one that is not as declared: a
        kernel notices other strides, and reads other types as they come."""
        graph = original.graph
        made: dict[str, Tensor] = {}
        for name in sorted(names):
            storage = graph.storage[name]
            if storage not in made:
                a = graph.anode[storage]
                shape = [evaluate(extent, original.sample) for extent in a.shape]
                match self.layouts.get(storage):
                    case [read, stride, a.dtype] if read == shape and _are_strides(stride, shape):
                        made[storage] = torch.empty_strided(
                            shape, stride, dtype=torch_dtype(a.dtype)
                        )
                    case _:
                        raise ValueError(f"the layout of %{storage} is none of it")
            for view in graph.views_below(name, made):
                made[view.name] = _viewed(view, made)
        return made

    def held(self) -> dict[str, Any]:
        """As `json` has it."""
        return {"of": self.of, "layouts": dict(self.layouts)}

    @staticmethod
    def read(held: object) -> FusedEntry | None:
        """ValueError for what is none."""
        match held:
            case None:
                return None
            case {"of": str(text), "layouts": dict(layouts)}:
                return FusedEntry(text, layouts)
        raise ValueError("what was fused is none")


def _names(original: Program, fused: Program) -> dict[str, str]:
    """What regions read, and what in the original each is an instance of."""
    origin = instances(original, fused)
    reads = (name for c in fused.graph.cnodes if c.is_fused for name in c.call.refs())
    return {name: origin.get(name, name) for name in reads}


def _layout(value: Tensor) -> list[Any]:
    return [list(value.shape), list(value.stride()), from_torch_dtype(value.dtype)]


def _viewed(view: View, made: Mapping[str, Tensor]) -> Tensor:
    args = to_torch(view.call.args, {}, made)
    kwargs = {key: to_torch(value, {}, made) for key, value in view.call.kwargs}
    several = callable_op(view.call.op)(*args, **kwargs)
    viewed: Tensor = several if view.index is None else several[view.index]
    return viewed


def _are_strides(stride: object, shape: list[int]) -> bool:
    """Whether a tensor of that shape has them and does not take more than 2**40 elements."""
    return (
        isinstance(stride, list)
        and len(stride) == len(shape)
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in stride)
        and sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) < 2**40
    )
