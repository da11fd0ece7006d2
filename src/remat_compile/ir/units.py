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
    for unit, scale in (("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3)):
        if bytes_per_s >= scale:
            return f"{bytes_per_s / scale:.4g} {unit}"
    return f"{bytes_per_s} B/s"


def format_ns(count: int) -> str:
    """For people: four digits, in ns, µs, ms or s."""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} ns"
