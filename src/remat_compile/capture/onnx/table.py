"""The lowering table: ONNX operator to a function on torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from .call import Lowering
from .ops.unsigned import with_unsigned

MICROSOFT = "com.microsoft"
"""The domain of what ONNX Runtime's optimiser fuses."""

ML = "ai.onnx.ml"

_TABLE: dict[tuple[str, str], Lowering] = {}
RANDOM: set[str] = set()
"""Operators that draw random numbers; they are never evaluated at build time."""

_MODULES = (
    "attention",
    "convolution",
    "elementwise",
    "features",
    "fourier",
    "fused",
    "indexing",
    "linear",
    "linear_attention",
    "losses",
    "normalization",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "regions",
    "resize",
    "sequence",
    "shape",
    "structure",
)


def register(*names: str, random: bool = False, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Enter the decorated function as the lowering of `names` of a domain."""

    def enter(function: Lowering) -> Lowering:
        for name in names:
            _TABLE[domain, name] = with_unsigned(function) if not domain else function
        if random:
            RANDOM.update(names)
        return function

    return enter


@cache
def _loaded() -> dict[tuple[str, str], Lowering]:
    for module in _MODULES:
        import_module(f".ops.{module}", __package__)
    return _TABLE


def lowering_of(domain: str, op: str) -> Lowering | None:
    """The lowering of an operator, if there is one."""
    return _loaded().get(("" if domain == "ai.onnx" else domain, op))


def own_operators(domain: str = "") -> tuple[str, ...]:
    """Operators of a domain with a lowering, sorted."""
    return tuple(sorted(name for home, name in _loaded() if home == domain))
