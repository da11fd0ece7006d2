"""The least period over all contiguous partitions and all 1-periodic schedules: exact, polynomial.

For a cap T on the period, f(p, b) is the least lifetime V of boundary b (from the end of the
forward before it to the start of the backward before it) when the layers from b on lie on p ranks.
A stage [i, b) with V behind it has `joined(V, load)` and so ceil(. / T) micro-batches in flight; if
these fit the memory, the lifetime before its input's transfer is f(p + 1, i). `joined` is monotone
in V, and what lies before i depends on nothing else, so the least V is best. Feasible for T implies
feasible for more, so T is found by bisection. O(L^2 P) for each T.

With several ways to run a stage (recompute), the fastest that fits at its own number of
micro-batches in flight is best: `joined` is monotone in the load too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..layers import Layers, Range, StageWay, ceil_div
from ..pattern import first_true, joined


@dataclass(frozen=True)
class Contiguous:
    """Stages in order, one rank each, the way of each, and the lifetime of the whole chain."""

    period_ns: int
    stages: tuple[Range, ...]
    ways: tuple[StageWay, ...]
    lifetime_ns: int


_Back = tuple[int, int, StageWay | None]


class ContiguousSearch:
    """The recurrence, with the stages' ways kept from one period to the next."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self._ways: dict[Range, tuple[StageWay, ...]] = {}

    def best_for(self, period_ns: int) -> Contiguous | None:
        """The partition of the least lifetime whose period is at most this; None if none fits."""
        layers = self.layers
        end = len(layers)
        tables: list[dict[int, tuple[int, _Back]]] = [{end: (0, (end, end, None))}]
        for _ in range(layers.ranks):
            table: dict[int, tuple[int, _Back]] = {}
            for b, (behind_ns, _) in tables[-1].items():
                self._extend(table, b, behind_ns, period_ns)
            tables.append(table)
        ends = [(table[0][0], p) for p, table in enumerate(tables) if 0 in table]
        if not ends:
            return None
        lifetime_ns, p = min(ends)
        stages: list[Range] = []
        ways: list[StageWay] = []
        at = 0
        while p:
            _, (start, stop, way) = tables[p][at]
            assert way is not None
            stages.append((start, stop))
            ways.append(way)
            at, p = stop, p - 1
        return Contiguous(period_ns, tuple(stages), tuple(ways), lifetime_ns)

    def _extend(
        self, table: dict[int, tuple[int, _Back]], b: int, behind_ns: int, period_ns: int
    ) -> None:
        """Enters all last stages [i, b) before a boundary that lives `behind_ns`."""
        layers = self.layers
        for i in reversed(layers.cuts):
            if i >= b:
                continue
            if layers.load_ns(i, b) > period_ns:
                break
            transfer_ns = layers.transfer_ns(i)
            if transfer_ns > period_ns:
                continue
            found = self.fastest(i, b, behind_ns, period_ns, layers.limit_bytes)
            if found is None:
                continue
            way, lifetime_ns = found
            if transfer_ns:
                lifetime_ns = joined(lifetime_ns, transfer_ns, period_ns)
            if i not in table or lifetime_ns < table[i][0]:
                table[i] = (lifetime_ns, (i, b, way))

    def ways(self, i: int, b: int) -> tuple[StageWay, ...]:
        """The ways of a stage [i, b), from the fastest."""
        if (i, b) not in self._ways:
            self._ways[i, b] = tuple(self.layers.ways(i, b))
        return self._ways[i, b]

    def fastest(
        self, i: int, b: int, behind_ns: int, period_ns: int, limit_bytes: int
    ) -> tuple[StageWay, int] | None:
        """The fastest way that fits a rank of its own, with the lifetime before the stage."""
        layers = self.layers
        room = limit_bytes - layers.held_bytes(i, b)
        for way in self.ways(i, b):
            if way.load_ns > period_ns:
                return None
            lifetime_ns = joined(behind_ns, way.load_ns, period_ns)
            copies = layers.copies(ceil_div(lifetime_ns, period_ns))
            if copies * way.keep_bytes + way.extra_bytes <= room:
                return way, lifetime_ns
        return None

    def least(self) -> Contiguous | None:
        """The partition of the least period; None where the memory fits none."""
        low = self.layers.least_period_ns
        high = max(low, self.layers.longest_period_ns)
        # Mostly near its lower bound: steps of 1 %, 2 %, 4 % .. upwards, then between the last two.
        step, top = max(1, low // 100), low
        while top < high and self.best_for(top) is None:
            low, top, step = top + 1, min(high, top + step), 2 * step
        if self.best_for(top) is None:
            return None
        k = first_true(top - low + 1, lambda k: self.best_for(low + k) is not None)
        return self.best_for(low + k)

    def for_step(self, microbatches: int) -> Contiguous | None:
        """The partition of the least (m - 1) T + V, a bound on the time of a step with a flush.

        T grows from the least by 1 %, then by 0.1 % around the best, until it alone is too long.
        """
        first = self.least()
        if first is None:
            return None
        floor_ns = self.layers.load_ns(0, len(self.layers))

        def step_ns(some: Contiguous) -> int:
            return (microbatches - 1) * some.period_ns + some.lifetime_ns

        best = first
        for per_mille in (10, 1):
            period = first.period_ns if per_mille == 10 else best.period_ns * 99 // 100
            stop = best.period_ns * 101 // 100 if per_mille == 1 else 1 << 62
            period = max(period, first.period_ns)
            while period <= stop and (microbatches - 1) * period + floor_ns < step_ns(best):
                some = self.best_for(period)
                if some is not None and step_ns(some) < step_ns(best):
                    best = some
                period += max(1, period * per_mille // 1000)
        return best
