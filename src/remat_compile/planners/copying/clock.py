"""How long an order takes with copies, without its schedule: what `simulate` says, far sooner."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.program import Target
from ...ir.semantics.link import Link, Transfer
from .place import Move

__all__ = ["time_ns"]


def time_ns(times: Sequence[int], moves: Sequence[Move], target: Target) -> int:
    """Nanoseconds of entries that take `times`, with these moves, in the order of `steps_of`."""
    out: list[list[Move]] = [[] for _ in range(len(times) + 1)]
    free: list[list[Move]] = [[] for _ in range(len(times) + 1)]
    issue: list[list[Move]] = [[] for _ in range(len(times) + 1)]
    back: list[list[Move]] = [[] for _ in range(len(times) + 1)]
    for move in sorted(moves, key=lambda move: (move.gap.made, move.gap.anode)):
        out[move.gap.made + 1].append(move)
        free[move.free].append(move)
    for move in sorted(moves, key=lambda move: (move.gap.back, move.gap.made)):
        issue[move.issue].append(move)
        back[move.gap.back].append(move)
    link, now = Link(target), 0
    flights: dict[int, Transfer] = {}
    for i in range(len(times) + 1):
        for move in out[i]:
            flights[id(move)] = link.issue("d2h", move.gap.size_bytes, now)
        for move in free[i]:
            now = max(now, link.end_of(flights[id(move)]))
        for move in issue[i]:
            flights[id(move)] = link.issue("h2d", move.gap.size_bytes, now)
        for move in back[i]:
            now = max(now, link.end_of(flights[id(move)]))
        if i < len(times):
            now += times[i]
    return now
