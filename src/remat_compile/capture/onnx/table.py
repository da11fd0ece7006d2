"""The lowering table: ONNX operator to a function on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from inspect import CO_VARARGS
from typing import Any

from .call import Call, Lowering, Value
from .unsigned import with_unsigned

ONE, TWO = ("Tensor",), ("Tensor", "Tensor")
"""Input readings of most lowerings."""

_TABLE: dict[tuple[str, str], Lowering] = {}
RANDOM: set[str] = set()
"""Operators that draw random numbers; they are never evaluated at build time."""

_MODULES = (
    "attention",
    "convolution",
    "elementwise",
    "generators",
    "indexing",
    "linear",
    "normalization",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "shape",
)


def register(
    *names: str, random: bool = False, domain: str = "", reads: Sequence[str] | None = None
) -> Callable[[Lowering], Lowering]:
    """Enter the decorated function as the lowering of `names` of a domain.

    Its annotations, or `reads`, say how it reads each input: `Tensor` and `Tensor | None` to
    compute with, `Value` as it is.
    """

    def enter(function: Lowering) -> Lowering:
        annotations = [kind for n, kind in function.__annotations__.items() if n != "return"][1:]
        lowering = _with_tensors(function, annotations if reads is None else reads)
        for name in names:
            _TABLE[domain, name] = with_unsigned(lowering) if not domain else lowering
        if random:
            RANDOM.update(names)
        return function

    return enter


def _with_tensors(function: Lowering, kinds: Sequence[str]) -> Lowering:
    readers = {"Tensor": Call.tensor, "Tensor | None": Call.optional}
    fixed = [readers.get(kind) for kind in kinds]
    rest = fixed[-1] if fixed and function.__code__.co_flags & CO_VARARGS else None

    @wraps(function)
    def lowering(call: Call, *values: Value) -> Any:
        every = [*fixed, *[rest] * (len(values) - len(fixed))]
        read = zip(every, values, strict=False)
        return function(call, *[value if one is None else one(call, value) for one, value in read])

    return lowering


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
