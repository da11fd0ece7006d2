"""Short tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["columns"]


def columns(rows: Sequence[tuple[str, ...]], align: str = "<") -> list[str]:
    """Rows of cells as lines, the cells of a column below each other.

    `align` has `<` or `>` per column; what it leaves out is flush right.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = align.ljust(len(widths), ">")
    return [
        "  ".join(f"{cell:{s}{w}}" for cell, s, w in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
