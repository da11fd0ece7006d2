"""Runs in a sequence that repeat with a period: the layers of a network, as captured.

The gaps between neighbouring equal entries vote for periods; the few that occur most are tried.
O(n log n) for a sequence of n entries.

    >>> longest_run("xabcabcabcy", 0, 11)
    Run(start=1, end=10, period=3)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Run", "longest_run", "runs_of"]

_TRIED = 8
"""So many periods are tried, those that most entries vote for."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries `start` to `end` (exclusive) repeat with `period`, at least twice."""

    start: int
    end: int
    period: int

    @property
    def length(self) -> int:
        return self.end - self.start


def longest_run(kinds: Sequence[Hashable], start: int, end: int) -> Run | None:
    """The run that covers most of this stretch, the smallest period among equals; None where
    nothing repeats."""
    best: Run | None = None
    for period in _periods(kinds, start, end):
        for run in _runs_with(kinds, start, end, period):
            if best is None or (run.length, -run.period) > (best.length, -best.period):
                best = run
    return best


def runs_of(kinds: Sequence[Hashable], least: int) -> list[Run]:
    """Runs that cover at least `least` entries and do not overlap, from left to right: the
    longest, then those to both sides of it."""
    found: list[Run] = []
    todo = [(0, len(kinds))]
    while todo:
        start, end = todo.pop()
        run = longest_run(kinds, start, end) if end - start >= least else None
        if run is None or run.length < least:
            continue
        found.append(run)
        todo += [(start, run.start), (run.end, end)]
    return sorted(found, key=lambda run: run.start)


def _periods(kinds: Sequence[Hashable], start: int, end: int) -> list[int]:
    gaps: Counter[int] = Counter()
    last: dict[Hashable, int] = {}
    for i in range(start, end):
        if kinds[i] in last:
            gaps[i - last[kinds[i]]] += 1
        last[kinds[i]] = i
    # An entry that stands in a layer several times votes for parts of its period: a gap that
    # none of the once-a-layer entries votes for covers little, and is tried for nothing.
    return sorted(gap for gap, _ in sorted(gaps.items(), key=lambda g: (-g[1], g[0]))[:_TRIED])


def _runs_with(kinds: Sequence[Hashable], start: int, end: int, period: int) -> Iterator[Run]:
    first = start
    for i in range(start, end - period + 1):
        if i + period < end and kinds[i] == kinds[i + period]:
            continue
        if i - first >= period:
            yield Run(first, i + period, period)
        first = i + 1
