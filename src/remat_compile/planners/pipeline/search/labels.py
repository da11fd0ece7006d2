"""Allocations with one *special* rank that may run several stages: MadPipe's first phase by labels.

Shilova 2021, section 7.2, whose grid of loads, bytes and lifetimes is replaced by Pareto sets. For
a cap T on the period, going from the last layer to the first, a label (V, load, bytes, largest)
says: the lifetime of the boundary, the load and bytes of the special rank so far, and the largest
set of values that one of its stages keeps. A further stage [i, b) with g micro-batches in flight
goes

* on a rank of its own, if it fits there with g copies, or
* on the special rank, if its load stays within T and bytes + largest within the memory. Each of its
  stages counts g - 1 copies: another is there only while one of them runs.

Without a `grid`, labels at T exist if any 1-periodic schedule of such an allocation has a period of
T: Theorem 15 holds stage by stage, so a stage has at least g in flight, and at least g - 1 at
any time. So the least T with labels is a lower bound for this class. The converse fails: an
allocation found here may not be schedulable at T (`periodic_program`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from time import monotonic

from ..layers import Layers, Range, ceil_div
from ..pattern import first_true, joined

_MOST = 4000
"""Labels of one boundary and number of ranks; more are an end without an answer."""


class LabelsOverflow(Exception):
    """There are more labels than are followed, or the time is over."""


@dataclass(frozen=True, slots=True)
class Label:
    lifetime_ns: int
    load_ns: int
    bytes: int
    largest: int
    stage: Range
    special: bool
    behind: Label | None

    def stages(self) -> Iterator[tuple[Range, bool]]:
        """From the first stage to the last, with whether it is on the special rank."""
        at: Label | None = self
        while at is not None and at.behind is not None:
            yield at.stage, at.special
            at = at.behind


@dataclass(frozen=True)
class SpecialAllocation:
    """Stages in order and their ranks."""

    stages: tuple[Range, ...]
    ranks: tuple[int, ...]


class LabelSearch:
    """The labels of a chain. `grid`: values are rounded up to so many parts of T and the memory,
    which keeps sets small and loses the bound; 0 for exact ones."""

    def __init__(self, layers: Layers, grid: int = 0, deadline: float = float("inf")):
        self.layers, self.grid, self.deadline = layers, grid, deadline
        self._bytes = cache(lambda i, j: (layers.stage_bytes(i, j, 0), layers.keep_bytes(i, j)))

    def allocations(self, period_ns: int) -> list[SpecialAllocation]:
        """All that the labels of the whole chain stand for, the shortest lifetime first."""
        layers, end = self.layers, len(self.layers)
        start = Label(0, 0, 0, 0, (end, end), False, None)
        labels: dict[tuple[int, int], list[Label]] = {(end, 0): [start]}
        for b in reversed(layers.cuts[1:]):
            for p in range(layers.ranks):
                for label in labels.get((b, p), ()):
                    self._extend(labels, b, p, label, period_ns)
                labels.pop((b, p), None)
        done = [label for (b, _), some in labels.items() if b == 0 for label in some]
        done.sort(key=lambda label: (label.lifetime_ns, label.load_ns, label.bytes))
        return list(dict.fromkeys(map(_allocation, done)))

    def least(self) -> int | None:
        """The least period with labels; None where there are none for any."""
        low, high = self.layers.least_period_ns, self.layers.longest_period_ns
        step, top = max(1, low // 100), low
        while not self.allocations(top):
            if top >= high:
                return None
            low, top, step = top + 1, min(high, top + step), 2 * step
        unit = max(1, low // 10_000) if self.grid else 1
        k = first_true(
            (top - low) // unit + 2, lambda k: bool(self.allocations(min(top, low + k * unit)))
        )
        return min(top, low + k * unit)

    def _extend(
        self,
        labels: dict[tuple[int, int], list[Label]],
        b: int,
        p: int,
        label: Label,
        period_ns: int,
    ) -> None:
        layers, limit = self.layers, self.layers.limit_bytes
        if monotonic() > self.deadline:
            raise LabelsOverflow
        for i in reversed(layers.cuts):
            if i >= b:
                continue
            load = layers.load_ns(i, b)
            if load > period_ns:
                break
            transfer = layers.transfer_ns(i)
            if transfer > period_ns:
                continue
            lifetime = joined(label.lifetime_ns, load, period_ns)
            copies = layers.copies(ceil_div(lifetime, period_ns))
            if transfer:
                lifetime = joined(lifetime, transfer, period_ns)
            lifetime = self._lifetime(lifetime, period_ns)
            none, keep = self._bytes(i, b)
            fits = none + copies * keep <= limit
            if p < layers.ranks - 1 and fits:
                _enter(
                    labels.setdefault((i, p + 1), []),
                    Label(
                        lifetime, label.load_ns, label.bytes, label.largest, (i, b), False, label
                    ),
                )
            total = label.load_ns + load
            if total > period_ns:
                continue
            held = label.bytes + none + layers.copies(copies - 1) * keep
            largest = max(label.largest, keep)
            if held + largest <= limit:
                held = self._up(held, limit)
                total = self._up(total, period_ns)
                _enter(
                    labels.setdefault((i, p), []),
                    Label(lifetime, total, held, largest, (i, b), True, label),
                )

    def _up(self, value: int, most: int) -> int:
        if not self.grid:
            return value
        unit = max(1, most // self.grid)
        return ceil_div(value, unit) * unit

    def _lifetime(self, value: int, period_ns: int) -> int:
        """Rounded up within its group: one more copy would be another stage's loss."""
        return min(self._up(value, period_ns), ceil_div(value, period_ns) * period_ns)


def _enter(labels: list[Label], new: Label) -> None:
    """Enters a label unless one is as good, in place of those that are no better. (Most of the
    time of the search is spent here: no calls.)"""
    lifetime, load, held, largest = new.lifetime_ns, new.load_ns, new.bytes, new.largest
    for x in labels:
        is_as_good = x.lifetime_ns <= lifetime and x.load_ns <= load
        if is_as_good and x.bytes <= held and x.largest <= largest:
            return
    labels[:] = [
        x
        for x in labels
        if x.lifetime_ns < lifetime or x.load_ns < load or x.bytes < held or x.largest < largest
    ]
    labels.append(new)
    if len(labels) > _MOST:
        raise LabelsOverflow


def _allocation(label: Label) -> SpecialAllocation:
    """Neighbours on the special rank are one stage; it is the rank of its first one."""
    stages: list[Range] = []
    kinds: list[bool] = []
    for (i, j), special in label.stages():
        if special and kinds and kinds[-1]:
            stages[-1] = (stages[-1][0], j)
        else:
            stages.append((i, j))
            kinds.append(special)
    ranks: list[int] = []
    shared = -1
    for special in kinds:
        new = max(ranks, default=-1) + 1
        if special:
            shared = new if shared < 0 else shared
        ranks.append(shared if special else new)
    return SpecialAllocation(tuple(stages), tuple(ranks))
