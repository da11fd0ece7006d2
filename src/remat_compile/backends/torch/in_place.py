"""A model planned at its first training call, in place: `nn.Module.compile` with a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Compile = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], nn.Module]


class FirstCall:
    """Stands where `nn.Module.compile` puts the compiled call, so that `model(...)` comes here.

    The first call that trains gives the sample; calls of `model.eval()` and under
    `torch.no_grad()` run the model itself.
    """

    def __init__(self, model: nn.Module, compile: Compile) -> None:
        self.model = model
        self.compile = compile
        self.planned: nn.Module | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        model._compiled_call_impl = None  # whoever calls the original from here gets it
        try:
            if not (model.training and torch.is_grad_enabled()):
                return model(*args, **kwargs)
            if self.planned is None:
                self.planned = self.compile(model, args, kwargs)
            return self.planned(*args, **kwargs)
        finally:
            model._compiled_call_impl = self


def plan_at_first_call(model: nn.Module, compile: Compile) -> None:
    """Puts a `FirstCall` in the model; `release` takes it out."""
    model._compiled_call_impl = FirstCall(model, compile)


def release(model: nn.Module) -> None:
    """The model is called as before."""
    if isinstance(model._compiled_call_impl, FirstCall):
        model._compiled_call_impl = None
