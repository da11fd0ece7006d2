"""A call with other shapes or strides than the sample's, or with numbers that send the forward
another way: in eager, or by a plan of its own."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..._torch.strides import Strides, strides_of
from ...ir.diagnostics import Diagnostic, render
from .module import PlannedModule

__all__ = ["RunEagerly", "RunPlannedAgain"]

PlanAgain = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], nn.Module]


_Shapes = tuple[tuple[torch.Size, Strides | None], ...]
"""Of the tensors of a call."""


@dataclass
class RunEagerly:
    """Other shapes run as in the original. Warns (FB0913) at the first such call."""

    warned: bool = False

    def __call__(self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.warned:
            self.warned = True
            message = (
                "a call has other shapes or strides than the plan, or its numbers send the forward "
                "another way, runs in eager: no bound holds"
            )
            hint = 'on_new_shape="replan" plans each once'
            diagnostic = Diagnostic("FB0913", message, hint=hint)
            warnings.warn(render(diagnostic, level="warning"), stacklevel=2)
        assert isinstance(owner, PlannedModule)
        return owner.planned_step.eager(owner, args, kwargs)


@dataclass
class RunPlannedAgain:
    """Other shapes run by a plan of their own, made at the first such call and kept; so do other
    ways that the forward goes by numbers of its arguments."""

    plan_again: PlanAgain
    known: dict[_Shapes, list[PlannedModule]] = field(default_factory=dict)
    planning: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        flat = tree_leaves((args, kwargs))
        planned = self._known_way(flat)
        if planned is None:
            with self.planning:  # once, whichever threads meet the same
                planned = self._known_way(flat) or self._another_way(owner, args, kwargs)
        return planned.planned_step(owner, args, kwargs)

    def _known_way(self, flat: list[Any]) -> PlannedModule | None:
        ways = self.known.get(_shapes_of(flat), ())
        return next((made for made in ways if not made.planned_step.other_reads(flat)), None)

    def _another_way(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedModule:
        shapes = _shapes_of(tree_leaves((args, kwargs)))
        again = self.plan_again(owner, args, kwargs)
        assert isinstance(again, PlannedModule)
        assert isinstance(owner, PlannedModule)
        again.planned_step.flight.join(owner.planned_step.flight)
        self.known.setdefault(shapes, []).append(again)
        return again

    def __deepcopy__(self, memo: dict[int, Any]) -> RunPlannedAgain:
        """A copy of a module has parameters of its own, and so plans of its own."""
        return RunPlannedAgain(self.plan_again)


def _shapes_of(flat: list[Any]) -> _Shapes:
    return tuple((t.shape, strides_of(t)) for t in flat if isinstance(t, Tensor))
