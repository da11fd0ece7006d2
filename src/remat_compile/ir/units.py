"""Bytes and times as people read them."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """For people: four digits or fewer and a binary unit, as in `1.5 GiB`."""
    if abs(count) < 1024:
        return f"{count} B"
    power = min((abs(count).bit_length() - 1) // 10, 4)
    size = count / 1024**power
    digits = 2 if abs(size) < 10 else 1 if abs(size) < 100 else 0
    return f"{size:.{digits}f} {'KMGT'[power - 1]}iB"


def format_rate(bytes_per_s: int) -> str:
    """For people: four digits and a decimal unit, as links are sold, as in `24.5 GB/s`."""
    return _scaled(bytes_per_s, ("GB/s", "MB/s", "kB/s", "B/s"))


def format_ns(count: int) -> str:
    """For people: four digits, in ns, µs, ms or s."""
    return _scaled(count, ("s", "ms", "µs", "ns"))


def _scaled(count: int, units: tuple[str, ...]) -> str:
    """In the largest of the units, each a thousand of the next, that it has one of."""
    scale = 1000 ** (len(units) - 1)
    for unit in units[:-1]:
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
        scale //= 1000
    return f"{count} {units[-1]}"
