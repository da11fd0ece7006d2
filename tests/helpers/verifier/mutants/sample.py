"""A few of many, the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def sample(items: Sequence[T], count: int, rng: Random) -> list[T]:
    return list(items) if len(items) <= count else rng.sample(list(items), count)
