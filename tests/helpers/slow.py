"""What only `make check` repeats: the breadth around cases that every run has."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def default_only(cases: Iterable[Any], default: Collection[Any]) -> list[Any]:
    """Parameters of a test: all `cases`, those that are not in `default` marked as slow. A case
    is one value, or a tuple of the values of several parameters."""
    cases = list(cases)
    assert all(case in cases for case in default), "a default case is none of the cases"
    return [
        case if case in default else pytest.param(*_values(case), marks=pytest.mark.slow)
        for case in cases
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
