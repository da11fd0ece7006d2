"""The lowering table: ONNX operator to a function on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from inspect import CO_VARARGS
from typing import Any, TypeAlias

from .call import Call, Lowering, Value
from .unsigned import is_unsigned, with_unsigned

_Reader: TypeAlias = "Callable[[Call, Value], Any]"
ONE, TWO = ("Tensor",), ("Tensor", "Tensor")
"""Input readings of most lowerings."""

_TABLE: dict[tuple[str, str], Lowering] = {}
_PLAIN: dict[Lowering, tuple[Lowering, _Readers]] = {}
"""The function behind a lowering, and how it reads its inputs."""

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
        readers = _Readers.of(function, annotations if reads is None else reads)
        lowering = _with_tensors(function, readers)
        if not domain:
            lowering = with_unsigned(lowering)
        _PLAIN[lowering] = function, readers
        for name in names:
            _TABLE[domain, name] = lowering
        if random:
            RANDOM.update(names)
        return function

    return enter


@dataclass(frozen=True)
class _Readers:
    """How a lowering reads each of its inputs: `rest` those beyond `fixed`; None as they are."""

    fixed: tuple[_Reader | None, ...]
    rest: _Reader | None

    @classmethod
    def of(cls, function: Lowering, kinds: Sequence[str]) -> _Readers:
        readers: dict[str, _Reader] = {"Tensor": Call.tensor, "Tensor | None": Call.optional}
        fixed = tuple(readers.get(kind) for kind in kinds)
        is_open = bool(fixed and function.__code__.co_flags & CO_VARARGS)
        return cls(fixed, fixed[-1] if is_open else None)

    def first(self, count: int) -> list[_Reader | None]:
        return [*self.fixed, *[self.rest] * (count - len(self.fixed))][:count]


def _with_tensors(function: Lowering, readers: _Readers) -> Lowering:
    @wraps(function)
    def lowering(call: Call, *values: Value) -> Any:
        read = zip(readers.first(len(values)), values, strict=True)
        return function(call, *[value if one is None else one(call, value) for one, value in read])

    return lowering


def plain(
    lowering: Lowering, call: Call, values: Sequence[Value]
) -> tuple[Lowering, Sequence[bool]]:
    """The function behind `lowering`, and which of `values` it takes as tensors alone.

    It has no steps that tell kinds and types of inputs apart, which are known by now: TorchDynamo
    traces each of them for each node. On unsigned integers it is the lowering itself.
    """
    if is_unsigned(call, values):
        return lowering, [False] * len(values)
    function, readers = _PLAIN[lowering]
    return function, [one is not None for one in readers.first(len(values))]


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
