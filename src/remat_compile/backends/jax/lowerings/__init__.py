"""ATen operators as JAX functions: one plain function per overload.

Each function takes what the operator's schema takes (`self` is called `x`), but for what
`backends/jax/honoured.py` leaves out, with arrays for tensors, JAX dtypes for dtypes and
tuples for lists, and returns an array or a tuple as ATen does, with None where ATen returns
no tensor. A random operator takes its `key` besides. Values follow PyTorch, promotion of
dtypes included.

The functions know only `jax` and `numpy`: what is emitted for a plan carries their text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from . import (  # noqa: F401  (each fills the table)
    activations,
    elementwise,
    factories,
    losses,
    normalization,
    products,
    reductions,
    views,
    windows,
)
from ._registry import IMPORTS, REGISTERED, Lowering, function_name, gather

__all__ = ["IMPORTS", "Lowering", "is_random", "missing", "source_of", "table"]

FAMILIES = tuple(dict.fromkeys(map(inspect.getmodule, REGISTERED.values())))
"""The modules that make up the table."""


def table() -> Mapping[str, Lowering]:
    """`aten.addmm.default` -> the function that computes it."""
    return MappingProxyType(REGISTERED)


def missing(ops: Iterable[str]) -> list[str]:
    """The members of `ops` without a lowering, each once, sorted."""
    return sorted({op for op in ops if op not in REGISTERED})


def is_random(op: str) -> bool:
    """True if the operator's function takes a `key` by keyword. KeyError without a lowering."""
    key = inspect.signature(REGISTERED[op]).parameters.get("key")
    return key is not None and key.kind is inspect.Parameter.KEYWORD_ONLY


def source_of(ops: Iterable[str]) -> str:
    """The text of the lowerings of `ops` and of all that they call: a module of its own.

    It begins with `IMPORTS` (jax and numpy), then the functions, in an order that
    depends only on the set of `ops`. KeyError for an operator without a lowering.
    """
    return IMPORTS + "\n\n" + gather({function_name(op): REGISTERED[op] for op in sorted(set(ops))})
