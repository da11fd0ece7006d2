"""Joining the stages of a chain into larger blocks that still repeat.

1-separators stand close together where a model happens to be narrow; an integer program
can take more at once. Where stages repeat with a period (a layer), whole periods are
joined, so that blocks stay identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...ir.analysis.blocks import fingerprint
from .chain import Chain, chain_from_stages

__all__ = ["fingerprints", "grouped", "period_of", "shortened"]

_LONGEST = 12
"""Periods of more stages are not looked for."""


def fingerprints(chain: Chain) -> list[str]:
    """One for each stage, the loss left out: equal for stages that are identical up to names."""
    names, graph = chain.instance.names_C, chain.instance.program.graph
    return [
        fingerprint(graph, (names[c] for c in forward), (names[c] for c in backward))
        for forward, backward in zip(chain.forward_N[:-1], chain.backward_N[:-1], strict=True)
    ]


def period_of(kinds: Sequence[object]) -> tuple[int, int, int]:
    """(start, end, period) of the longest run in which `kinds` repeats with a period;
    (0, 0, 1) where nothing does."""
    best = (0, 0, 1)
    for period in range(1, _LONGEST + 1):
        start = 0
        for i in range(len(kinds) - period + 1):
            same = i + period < len(kinds) and kinds[i] == kinds[i + period]
            if same:
                continue
            if i > start and i + period - start > best[1] - best[0]:
                best = (start, i + period, period)
            start = i + 1
    return best


def grouped(chain: Chain, most: int) -> Chain:
    """The chain with neighbours joined into blocks of at most `most` forward cNodes, or one
    period where that is longer."""
    sizes = [len(cnodes) for cnodes in chain.forward_N[:-1]]
    start, end, period = period_of(fingerprints(chain))
    cuts = _greedy(sizes, 0, start, most)
    if end > start:
        whole = sum(sizes[start : start + period])
        step = period * max(1, most // max(1, whole))
        repeats = range(start, end - step + 1, step)
        cuts += list(repeats)
        start = repeats[-1] + step if repeats else start
    cuts += _greedy(sizes, start, len(sizes), most)
    cuts.append(len(sizes))
    stages = [[c for i in range(a, b) for c in chain.forward_N[i]] for a, b in pairwise(cuts)]
    return chain_from_stages(chain.instance, stages)


def shortened(chain: Chain, most_stages: int) -> Chain:
    """The chain itself, or with neighbours joined where it has more stages than this."""
    cnodes = sum(len(cs) for cs in chain.forward_N)
    most = max(1, cnodes // most_stages)
    while len(chain) > most_stages:
        most *= 2
        chain = grouped(chain, most)
    return chain


def _greedy(sizes: Sequence[int], start: int, end: int, most: int) -> list[int]:
    """First stages of blocks of at most `most` cNodes."""
    found: list[int] = []
    total = 0
    for i in range(start, end):
        if not found or total + sizes[i] > most:
            found.append(i)
            total = 0
        total += sizes[i]
    return found
