"""The lowering table: ONNX operator to a function on torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from .call import Lowering

__all__ = ["RANDOM", "lowering_of", "own_operators", "register"]

_TABLE: dict[str, Lowering] = {}
RANDOM: set[str] = set()
"""Operators that draw random numbers; they are never evaluated at build time."""

_MODULES = (
    "attention",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "losses",
    "normalization",
    "pooling",
    "random",
    "reduction",
    "resize",
    "sequence",
    "shape",
    "structure",
)


def register(*names: str, random: bool = False) -> Callable[[Lowering], Lowering]:
    """Enter the decorated function as the lowering of `names` (default domain)."""

    def enter(function: Lowering) -> Lowering:
        for name in names:
            _TABLE[name] = function
        if random:
            RANDOM.update(names)
        return function

    return enter


@cache
def _loaded() -> dict[str, Lowering]:
    for module in _MODULES:
        import_module(f".ops.{module}", __package__)
    return _TABLE


def lowering_of(domain: str, op: str) -> Lowering | None:
    """The lowering of an operator of the default domain, if there is one."""
    return _loaded().get(op) if domain in ("", "ai.onnx") else None


def own_operators() -> tuple[str, ...]:
    """Operators of the default domain with a lowering, sorted."""
    return tuple(sorted(_loaded()))
