"""Tables and text plots for the benchmarks that need no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns below each other, the first flush left."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    for row in table:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def text_plot(
    title: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    width: int = 72,
    height: int = 18,
) -> str:
    """Points of each curve under the first letter of its name; later curves lie on top."""
    points = [p for curve in curves.values() for p in curve]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    grid = [[" "] * (width + 1) for _ in range(height + 1)]
    for name, curve in curves.items():
        for x, y in curve:
            column = round((x - left) / ((right - left) or 1) * width)
            row = round((high - y) / ((high - low) or 1) * height)
            grid[row][column] = name[0]
    names = ", ".join(f"{name[0]} = {name}" for name in curves)
    lines = [f"{title}   ({names})"]
    for i, row in enumerate(grid):
        value = high - i * (high - low) / height
        lines.append(f"{value:7.2f} |{''.join(row).rstrip()}")
    lines.append(f"{'':8}+{'-' * width}")
    lines.append(f"{'':9}{left:<10g}{right:>{width - 10}g}")
    return "\n".join(lines)
