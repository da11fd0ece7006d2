"""Gaps of an order: the longest waits of tensors between two uses.

A *gap* lies between two uses of one instance of an aNode, which is neither made again nor read in
between. Entries of an order are its positions; a *boundary* i is what happens just before entry i.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ...instance import Instance, Order


@dataclass(frozen=True, slots=True)
class Gap:
    """`made` is the entry that made this instance of the aNode, `last` the one that uses it last
    before the gap, `back` the one that reads it first after it. The copy out may start behind
    `made`; the bytes can be given back behind `last` and must be there again at `back`."""

    anode: int
    size_bytes: int
    made: int
    last: int
    back: int


@dataclass(slots=True)
class _Life:
    made: int
    uses: list[int]


def gaps_of(instance: Instance, order: Order, least_bytes: int = 1) -> list[Gap]:
    """One gap for each instance of an aNode of at least `least_bytes`: its longest, and none
    between entries that follow each other. In the order in which the instances are made. Linear.

    Left out is what the caller holds, from the loss on or always.
    """
    inst = instance
    held = {inst.index_A[name] for name in inst.program.held_since_loss}
    gaps = []
    for a, life in _lives(inst, order):
        if a in held or inst.size_A[a] < max(1, least_bytes):
            continue
        uses = [life.made, *life.uses]
        last, back = max(pairwise(uses), key=_length, default=(0, 0))
        if back - last > 1:
            gaps.append(Gap(a, inst.size_A[a], life.made, last, back))
    return sorted(gaps, key=lambda gap: (gap.made, gap.anode))


def _length(ends: tuple[int, int]) -> int:
    return ends[1] - ends[0]


def _lives(inst: Instance, order: Order) -> Iterator[tuple[int, _Life]]:
    """Every instance of every aNode, tokens included, with the entries that read it."""
    total = Counter(order)
    runs: Counter[int] = Counter()
    alive: dict[int, _Life] = {}
    for i, c in enumerate(order):
        runs[c] += 1
        first = runs[c] == 1
        token = inst.token_C[c] if total[c] > 1 else -1
        reads = inst.reads_C[c] if first else inst.rereads_C[c]
        for a in (*reads, *((token,) if token >= 0 and not first else ())):
            alive[a].uses.append(i)
        if inst.ends_C[c] >= 0:
            yield inst.ends_C[c], alive.pop(inst.ends_C[c])
        made = inst.writes_C[c] if first else inst.rewrites_C[c]
        for a in (*made, *((token,) if token >= 0 and first else ())):
            if a in alive:
                if inst.kept_A[a]:
                    # Made again and dropped: a copy of it may not be in flight at this entry.
                    alive[a].uses.append(i)
                    continue
                yield a, alive[a]
            alive[a] = _Life(i, [])
    for a, life in alive.items():
        if inst.kept_A[a]:
            life.uses.append(len(order))
        yield a, life
