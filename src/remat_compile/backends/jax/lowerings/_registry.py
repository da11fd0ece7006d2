"""Which function lowers which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)

REGISTERED: dict[str, Lowering] = {}
"""Operator as the IR writes it -> its function; filled as the families are imported."""


def function_name(op: str) -> str:
    """`aten.t.default` -> `aten_t_default`."""
    return op.replace(".", "_")


def lowers(*ops: str) -> Callable[[F], F]:
    """Registers a function for operators of one signature and one meaning.

    It is named after the first of them, with dots as underscores. The decorator does not
    appear in what `source_of` gives.
    """

    def register(function: F) -> F:
        assert function.__name__ == function_name(ops[0]), f"{function.__name__} for {ops[0]}"
        for op in ops:
            assert op not in REGISTERED, f"{op} is lowered twice"
            REGISTERED[op] = function
        return function

    return register
