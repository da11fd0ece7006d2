"""Short tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.terminal import printable, width


def columns(rows: Sequence[tuple[str, ...]], align: str = "<") -> list[str]:
    """Rows of cells as lines, the cells of a column below each other.

    `align` has `<` or `>` per column; what it leaves out is flush right. Cells are made
    printable, since names in them come from files.
    """
    table = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(width, column)) for column in zip(*table, strict=True)]
    sides = align.ljust(len(widths), ">")
    return ["  ".join(map(_padded, row, sides, widths)).rstrip() for row in table]


def _padded(cell: str, side: str, columns: int) -> str:
    space = " " * (columns - width(cell))
    return cell + space if side == "<" else space + cell
