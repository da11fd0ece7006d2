"""How a tensor lies in memory, as far as it is told apart here."""

from __future__ import annotations

__all__ = ["Strides"]

Strides = tuple[int, ...]
