"""Allocations with one *special* rank that may run several stages: MadPipe's first phase by labels.

Shilova 2021, section 7.2, whose grid of loads, bytes and lifetimes is replaced by Pareto sets. For
a cap T on the period, going from the last layer to the first, a label (V, load, bytes, largest)
says: the lifetime of the boundary, the load and bytes of the special rank so far, and the largest
set of values that one of its stages keeps. A further stage [i, b) with g micro-batches in flight
goes

* on a rank of its own, if it fits there with g copies, or
* on the special rank, if its load stays within T and bytes + largest within the memory. Each of its
  stages counts g - 1 copies: another is there only while one of them runs, with what that needs.

On a rank of its own the fastest way of a stage that fits is best, as in `contiguous`. The special
rank tries each: a slower one may leave room for its other stages.

Without a `grid`, labels at T exist if any 1-periodic schedule of such an allocation and of such
ways has a period of T. Theorem 15 holds stage by stage for any loads: a stage has at least g
micro-batches in flight from the begin of its forward to the end of its backward, and at least g - 1
at any time. A step of m micro-batches has a moment with min(g, m) of one and min(g, m) - 1 of each
other. So the least T with labels is a lower bound for this class. The converse fails: an allocation
found here may not be schedulable at T (`periodic_program`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from ..layers import Layers, Range, StageWay, ceil_div
from ..pattern import first_true, joined
from .balanced import least_memory
from .contiguous import ContiguousSearch

_PARTS = 2000
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
    way: StageWay | None
    special: bool
    behind: Label | None

    def stages(self) -> Iterator[tuple[Range, StageWay, bool]]:
        """From the first stage to the last, with whether it is on the special rank."""
        at: Label | None = self
        while at is not None and at.way is not None:
            yield at.stage, at.way, at.special
            at = at.behind


@dataclass(frozen=True)
class SpecialAllocation:
    """Stages in order, their ranks and their ways."""

    stages: tuple[Range, ...]
    ranks: tuple[int, ...]
    ways: tuple[StageWay, ...]


class LabelSearch:
    """The labels of a chain. `grid`: values are rounded up to so many parts of T and of the memory
    that is needed at all, which keeps sets small and loses the bound; 0 for exact ones. `alone` has
    the ways of stages."""

    def __init__(
        self,
        layers: Layers,
        grid: int = 0,
        deadline: float = float("inf"),
        alone: ContiguousSearch | None = None,
    ):
        self.layers, self.grid, self.deadline = layers, grid, deadline
        self._alone = alone or ContiguousSearch(layers)
        self._at: dict[int, list[SpecialAllocation]] = {}
        # Periods are multiples of it: what is found depends on chain and memory alone.
        self.unit_ns = max(1, layers.least_period_ns // _PARTS) if grid else 1
        self.unit_bytes = max(1, least_memory(layers) // grid) if grid else 1

    def allocations(self, period_ns: int) -> list[SpecialAllocation]:
        """All that the labels of the whole chain stand for, the shortest lifetime first."""
        if period_ns not in self._at:
            self._at[period_ns] = self._allocations(period_ns)
        return self._at[period_ns]

    def _allocations(self, period_ns: int) -> list[SpecialAllocation]:
        layers, end = self.layers, len(self.layers)
        start = Label(0, 0, 0, 0, (end, end), None, False, None)
        labels: dict[tuple[int, int], list[Label]] = {(end, 0): [start]}
        for b in reversed(layers.cuts[1:]):
            for p in range(layers.ranks):
                for label in labels.get((b, p), ()):
                    self._extend(labels, b, p, label, period_ns)
                labels.pop((b, p), None)
        done = [label for (b, _), some in labels.items() if b == 0 for label in some]
        done.sort(key=lambda label: (label.lifetime_ns, label.load_ns, label.bytes))
        return list(dict.fromkeys(_allocation(layers, label) for label in done))

    def least(self, below_ns: int | None = None, from_ns: int = 1) -> int | None:
        """The least period with labels; None where there are none for any below `below_ns`. There
        are none below `from_ns`.

        Steps of 1 %, 2 %, 4 % .. down from `below_ns`, or else up from the least that the load
        allows, find two periods, with labels and without, between which it is sought."""
        unit = self.unit_ns
        low = ceil_div(max(from_ns, self.layers.least_period_ns), unit)
        high = ceil_div(self.layers.longest_period_ns, unit)

        def has(k: int) -> bool:
            return bool(self.allocations(k * unit))

        if below_ns is not None and (high := min(high, (below_ns - 1) // unit)) < low:
            return None
        if has(low):
            return low * unit
        step, top = max(1, low // 100), low
        if below_ns is None:
            while not has(top):
                if top >= high:
                    return None
                low, top, step = top + 1, min(high, top + step), 2 * step
        else:
            top = high
            if not has(top):
                return None
            while has(lower := max(low, top - step)):
                top, step = lower, 2 * step
            low = lower + 1
        return (low + first_true(top - low + 1, lambda k: has(low + k))) * unit

    def _extend(
        self,
        labels: dict[tuple[int, int], list[Label]],
        b: int,
        p: int,
        label: Label,
        period_ns: int,
    ) -> None:
        layers, limit = self.layers, self.layers.limit_bytes
        unit, unit_ns = self.unit_bytes, max(1, period_ns // self.grid) if self.grid else 1
        if monotonic() > self.deadline:
            raise LabelsOverflow
        groups = ceil_div(label.lifetime_ns, period_ns)
        group_ns = groups * period_ns
        others = (layers.copies(groups + 1) - 1, max(0, layers.copies(groups) - 1))
        for i in reversed(layers.cuts):
            if i >= b:
                continue
            if layers.load_ns(i, b) > period_ns:
                break
            transfer = layers.transfer_ns(i)
            if transfer > period_ns:
                continue
            alone = self._alone.fastest(i, b, label.lifetime_ns, period_ns, limit)
            if p < layers.ranks - 1 and alone is not None:
                way, lifetime = alone
                lifetime = self._before(lifetime, transfer, period_ns)
                new = replace(
                    label, lifetime_ns=lifetime, stage=(i, b), way=way, special=False, behind=label
                )
                _enter(labels.setdefault((i, p + 1), []), new)
            own = layers.held_bytes(i, b)
            for way in self._alone.ways(i, b):
                total = label.load_ns + way.load_ns
                if total > period_ns:
                    break
                # Spelled out: `joined`, and the copies that are there beside the one that runs.
                within = label.lifetime_ns + way.load_ns <= group_ns
                lifetime = way.load_ns + (label.lifetime_ns if within else group_ns)
                more = others[within]
                held = label.bytes + own + more * way.keep_bytes
                largest = max(label.largest, way.keep_bytes + way.extra_bytes)
                if held + largest <= limit:
                    lifetime = self._before(lifetime, transfer, period_ns)
                    total = self._up(total, unit_ns)
                    held, largest = self._up(held, unit), self._up(largest, unit)
                    new = Label(lifetime, total, held, largest, (i, b), way, True, label)
                    _enter(labels.setdefault((i, p), []), new)
                    if not more and largest == label.largest:
                        break  # no slower way takes less

    def _before(self, lifetime_ns: int, transfer_ns: int, period_ns: int) -> int:
        """With the transfer before it, rounded up within its group: one more copy would be another
        stage's loss."""
        if transfer_ns:
            lifetime_ns = joined(lifetime_ns, transfer_ns, period_ns)
        most = ceil_div(lifetime_ns, period_ns) * period_ns
        return min(self._up(lifetime_ns, max(1, period_ns // (self.grid or 1))), most)

    def _up(self, value: int, unit: int) -> int:
        return ceil_div(value, unit) * unit if self.grid else value


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


def _allocation(layers: Layers, label: Label) -> SpecialAllocation:
    """Neighbours on the special rank are one stage; it is the rank of its first one."""
    stages: list[Range] = []
    remade: list[tuple[Range, ...]] = []
    kinds: list[bool] = []
    for (i, j), way, special in label.stages():
        if special and kinds and kinds[-1]:
            stages[-1] = (stages[-1][0], j)
            remade[-1] += way.remade
        else:
            stages.append((i, j))
            remade.append(way.remade)
            kinds.append(special)
    ranks: list[int] = []
    shared = -1
    for special in kinds:
        new = max(ranks, default=-1) + 1
        if special:
            shared = new if shared < 0 else shared
        ranks.append(shared if special else new)
    ways = tuple(layers.way(*stage, again) for stage, again in zip(stages, remade, strict=True))
    return SpecialAllocation(tuple(stages), tuple(ranks), ways)
