"""Hooks of modules, told apart by the code that they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["KINDS", "Hook", "hook_at", "hooks_of"]

KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of a module that hold its hooks."""

Hook = tuple[str, str, object]
"""The path of its module, its kind, and what it runs: of a function the code, which is the same
for another one that the same line makes."""


def hooks_of(model: nn.Module) -> frozenset[Hook]:
    return frozenset(
        hook_at(path, kind, function)
        for path, module in model.named_modules()
        for kind in KINDS
        for function in vars(module)[kind].values()
    )


def hook_at(path: str, kind: str, function: Callable[..., Any]) -> Hook:
    return path, kind, getattr(function, "__code__", function)
