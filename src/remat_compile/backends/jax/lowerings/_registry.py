"""Which function lowers which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["REGISTERED", "Lowering", "lowers"]

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)

REGISTERED: dict[str, Lowering] = {}
"""Operator as the IR writes it -> its function; filled as the families are imported."""


def lowers(op: str) -> Callable[[F], F]:
    """Registers a function, named after the operator with dots as underscores, for `op`.

    The decorator does not appear in what `source_of` gives.
    """

    def register(function: F) -> F:
        assert function.__name__ == op.replace(".", "_"), f"{function.__name__} for {op}"
        assert op not in REGISTERED, f"{op} is lowered twice"
        REGISTERED[op] = function
        return function

    return register
