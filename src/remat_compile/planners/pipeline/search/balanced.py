"""The contiguous partition of the least largest load (PipeDream, Narayanan et al. 2019, 3.1).

A(p, b) = min over i of max(A(p - 1, i), load(i, b), transfer(i)); from the last stage here, so that
the depth of a stage is known. Exact for loads; memory is bounded only by the number of copies that
`copies` tells for the stage of that depth (1: the last).
"""

from __future__ import annotations

from collections.abc import Callable

from ..layers import Layers, Range


def least_memory(layers: Layers) -> int:
    """The bytes of each rank without which no contiguous pipeline runs, however slowly: with one
    micro-batch at a time, the least largest stage over all partitions."""
    tables: dict[int, int] = {len(layers): 0}
    need: dict[Range, int] = {}
    for _ in range(layers.ranks):
        table = dict(tables)
        for b, behind in tables.items():
            for i in layers.cuts:
                if i >= b:
                    break
                if (i, b) not in need:
                    ways = layers.ways(i, b)
                    least = min(way.keep_bytes + way.extra_bytes for way in ways)
                    need[i, b] = layers.held_bytes(i, b) + least
                table[i] = min(table.get(i, 1 << 62), max(behind, need[i, b]))
        tables = table
    return tables[0]


def balanced(
    layers: Layers, copies: Callable[[int], int] | None = None, *, fewer: bool = True
) -> tuple[int, tuple[Range, ...]] | None:
    """The largest load in nanoseconds and the stages; None where no partition fits the memory
    with these copies. None for `copies` ignores the memory. Without `fewer` every rank has a
    stage."""
    end = len(layers)
    tables: list[dict[int, tuple[int, int]]] = [{end: (0, end)}]
    for depth in range(1, layers.ranks + 1):
        table: dict[int, tuple[int, int]] = {}
        for b, (behind_ns, _) in tables[-1].items():
            for i in layers.cuts:
                if i >= b:
                    break
                if copies is not None:
                    need = layers.stage_bytes(i, b, copies(depth))
                    if need > layers.limit_bytes:
                        continue
                period = max(behind_ns, layers.load_ns(i, b), layers.transfer_ns(i))
                if i not in table or period < table[i][0]:
                    table[i] = (period, b)
        tables.append(table)
    ends = [(table[0][0], depth) for depth, table in enumerate(tables) if 0 in table]
    ends = [end for end in ends if fewer or end[1] == layers.ranks]
    if not ends:
        return None
    period, depth = min(ends)
    stages: list[Range] = []
    at = 0
    while depth:
        stop = tables[depth][at][1]
        stages.append((at, stop))
        at, depth = stop, depth - 1
    return period, tuple(stages)
