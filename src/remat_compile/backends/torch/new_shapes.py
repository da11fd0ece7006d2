"""A call with other shapes than the sample's: in eager, or by a plan of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...ir.diagnostics import Diagnostic, render
from .module import PlannedModule

__all__ = ["run_eagerly", "run_planned_again"]

PlanAgain = Callable[[tuple[Any, ...], dict[str, Any]], nn.Module]


def run_eagerly(drop_in: PlannedModule) -> None:
    """Lets other shapes run as in the original. Warns (FB0913) at the first such call."""
    original: Any = type(drop_in).__mro__[2]  # behind the class made for it, and PlannedModule
    warned = False

    def run(owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal warned
        if not warned:
            warned = True
            message = "a call has other shapes than the plan, and runs in eager: no bound holds"
            hint = 'on_new_shape="replan" plans each shape once'
            diagnostic = Diagnostic("FB0913", message, hint=hint)
            warnings.warn(render(diagnostic, level="warning"), stacklevel=2)
        return original.forward(owner, *args, **kwargs)

    drop_in.planned_step.on_new_shape = run


def run_planned_again(drop_in: PlannedModule, plan_again: PlanAgain) -> None:
    """Lets other shapes run by a plan of their own, made at the first such call and kept."""
    known: dict[tuple[torch.Size, ...], PlannedModule] = {}

    def run(owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shapes = tuple(t.shape for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        if shapes not in known:
            made = plan_again(args, kwargs)
            assert isinstance(made, PlannedModule)
            known[shapes] = made
        return known[shapes].planned_step(owner, args, kwargs)

    drop_in.planned_step.on_new_shape = run
