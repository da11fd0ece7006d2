"""Warnings of a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable


def warnings_of(call: Callable[[], object]) -> list[str]:
    """The texts of all, those that were given before included."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


def assert_warned_once(
    call: Callable[[], object], edit: Callable[[], object], code: str, says: str
) -> None:
    """None before the edit, one in the call after it, and none after that."""
    assert warnings_of(call) == []
    edit()
    (message,) = warnings_of(call)
    assert code in message
    assert says in message
    assert warnings_of(call) == []
