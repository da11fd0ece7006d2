"""Ranges of a size as text, apart from the search, so that a wrong one is refused fast."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...ir.diagnostics import Diagnostic, FBError

BATCH = "batch"
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class SizeRange:
    """`low..high` of the size `name`, both included."""

    name: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.name}={self.low}..{self.high}"


def read_range(name: str, text: str) -> SizeRange:
    """FB0973 for what is no range."""
    match = _RANGE.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        message = f'cannot read the range "{text}" of {name}'
        raise FBError(
            Diagnostic("FB0973", message, hint="write LOW..HIGH, as in 1..64"), usage=True
        )
    return SizeRange(name, int(match[1]), int(match[2]))
