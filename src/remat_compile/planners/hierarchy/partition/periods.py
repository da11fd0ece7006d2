"""Runs in a sequence that repeat with a period: the layers of a network, as captured.

The gaps between neighbouring equal votes are counted, and the few that occur most are tried as
periods. A vote is an entry with what stands around it: an operator that occurs several times in a
layer tells nothing of the layer's period, but with its predecessors it does. O(n log n).

    >>> longest_run("xabcabcabcy", "xabcabcabcy", 0, 11)
    Repeat(start=1, end=10, period=3)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

_TRIED = 8
"""Limit on the periods that are tried, most frequent first."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Entries `start` to `end` (exclusive) repeat with `period`, at least twice."""

    start: int
    end: int
    period: int

    @property
    def length(self) -> int:
        return self.end - self.start


def longest_run(
    kinds: Sequence[Hashable], votes: Sequence[Hashable], start: int, end: int
) -> Repeat | None:
    """The run that covers most of this stretch, the smallest period among equals; None where
    nothing repeats."""
    best: Repeat | None = None
    for period in _periods(votes, start, end):
        for run in _runs_with(kinds, start, end, period):
            if best is None or (run.length, -run.period) > (best.length, -best.period):
                best = run
    return best


def runs_of(kinds: Sequence[Hashable], votes: Sequence[Hashable], least: int) -> list[Repeat]:
    """Runs that cover at least `least` entries and do not overlap, from left to right: the
    longest, then those to both sides of it."""
    runs: list[Repeat] = []
    todo = [(0, len(kinds))]
    while todo:
        start, end = todo.pop()
        run = longest_run(kinds, votes, start, end) if end - start >= least else None
        if run is None or run.length < least:
            continue
        runs.append(run)
        todo += [(start, run.start), (run.end, end)]
    return sorted(runs, key=lambda run: run.start)


def _periods(votes: Sequence[Hashable], start: int, end: int) -> list[int]:
    gaps: Counter[int] = Counter()
    last: dict[Hashable, int] = {}
    for i in range(start, end):
        if votes[i] in last:
            gaps[i - last[votes[i]]] += 1
        last[votes[i]] = i
    return [gap for gap, _ in sorted(gaps.items(), key=lambda g: (-g[1], g[0]))[:_TRIED]]


def _runs_with(kinds: Sequence[Hashable], start: int, end: int, period: int) -> Iterator[Repeat]:
    first = start
    for i in range(start, end - period + 1):
        if i + period < end and kinds[i] == kinds[i + period]:
            continue
        if i - first >= period:
            yield Repeat(first, i + period, period)
        first = i + 1
