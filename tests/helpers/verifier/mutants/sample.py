"""A few of many, the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

__all__ = ["sample"]

T = TypeVar("T")


def sample(found: Sequence[T], count: int, rng: Random) -> list[T]:
    return list(found) if len(found) <= count else rng.sample(list(found), count)
