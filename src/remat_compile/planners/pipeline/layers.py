"""A chain of layers on equal ranks: the problem that planners of pipelines are given.

Layers are numbered from 0; a *stage* is a range [i, j) of them; boundary b stands before layer b.
Index legend: `x_L` has one entry per layer, `x_B` one per boundary, 0 and L included.

Shilova 2021, section 5.1. Every pair of ranks has a link that moves one thing at a time, in both
directions together. In steady state a stage holds for each micro-batch in flight what its backward
needs (`kept_bytes_L`, the input included).

Three layers of 2 + 4 ns, each keeps 10 bytes and has 5 bytes of weights; boundaries of 8 bytes:

    >>> sizes = (0, 8, 8, 0)
    >>> layers = Layers((2,) * 3, (4,) * 3, (10,) * 3, (5,) * 3, sizes, sizes, ranks=2)
    >>> layers.load_ns(0, 2), layers.stage_bytes(0, 2, in_flight=3)
    (12, 86)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from .search.segments import Segments

Range = tuple[int, int]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class StageWay:
    """The way a stage runs: the segments that it makes again before their backward, the time of its
    forward and backward, and the bytes that it keeps per micro-batch."""

    load_ns: int
    keep_bytes: int
    extra_bytes: int
    remade: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Layers:
    """Times in nanoseconds, sizes in bytes, the link in bytes per second (None: free).

    `held_bytes_L` is there throughout: all copies of the weights. `extra_bytes_L` is what the
    forward or backward of a layer needs for itself, on top of what is kept. `inner_bytes_L` is the
    part of `kept_bytes_L` that a second forward of the layer makes again from its input.
    `input_read_B` and `output_read_B` say whether the backward behind a cut reads what crosses it
    (left out: it does, and `kept_bytes_L` counts it), and whether the one before the cut does (it
    does not).
    `weight_ns_L` is the part of `backward_ns_L` that only makes gradients of parameters, and may
    run later. Without `counts_buffers` a cut takes no bytes for what is under way (for bounds).
    `memory_bytes` bounds each rank (None: no bound). `microbatches` is that of one step (None: no
    end, the steady state).
    """

    forward_ns_L: tuple[int, ...]
    backward_ns_L: tuple[int, ...]
    kept_bytes_L: tuple[int, ...]
    held_bytes_L: tuple[int, ...]
    activation_bytes_B: tuple[int, ...]
    gradient_bytes_B: tuple[int, ...]
    ranks: int
    memory_bytes: int | None = None
    link_bytes_per_s: int | None = None
    microbatches: int | None = None
    extra_bytes_L: tuple[int, ...] = ()
    inner_bytes_L: tuple[int, ...] = ()
    weight_ns_L: tuple[int, ...] = ()
    input_read_B: tuple[bool, ...] = ()
    output_read_B: tuple[bool, ...] = ()
    uncuttable_B: frozenset[int] = frozenset()
    counts_buffers: bool = True

    def __len__(self) -> int:
        return len(self.forward_ns_L)

    @property
    def limit_bytes(self) -> int:
        return 1 << 62 if self.memory_bytes is None else self.memory_bytes

    def with_memory(self, memory_bytes: int | None) -> Layers:
        return replace(self, memory_bytes=memory_bytes)

    @cached_property
    def _sums(self) -> tuple[list[int], list[int], list[int]]:
        loads = (f + b for f, b in zip(self.forward_ns_L, self.backward_ns_L, strict=True))
        columns = (loads, iter(self.kept_bytes_L), iter(self.held_bytes_L))
        loads_B, kept_B, held_B = ([0, *accumulate(column)] for column in columns)
        return loads_B, kept_B, held_B

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Boundaries at which a stage may begin or end, 0 and L included."""
        return tuple(b for b in range(len(self) + 1) if b not in self.uncuttable_B)

    @cached_property
    def transfers_ns_B(self) -> tuple[tuple[int, int], ...]:
        """Time of the activation and the gradient of each boundary on a link."""
        rate = self.link_bytes_per_s
        return tuple(
            (0, 0)
            if rate is None or b in (0, len(self))
            else (ceil_div(act * 10**9, rate), ceil_div(grad * 10**9, rate))
            for b, (act, grad) in enumerate(
                zip(self.activation_bytes_B, self.gradient_bytes_B, strict=True)
            )
        )

    def transfer_ns(self, b: int) -> int:
        """Both directions of boundary b together."""
        return sum(self.transfers_ns_B[b])

    def load_ns(self, i: int, j: int) -> int:
        """Forward and backward of layers [i, j), nothing made again."""
        loads_B = self._sums[0]
        return loads_B[j] - loads_B[i]

    def keep_bytes(self, i: int, j: int) -> int:
        """Kept per micro-batch in flight by a stage [i, j)."""
        kept_B = self._sums[1]
        kept = kept_B[j] - kept_B[i]
        if self.reads_output(j):
            kept += self.activation_bytes_B[j]
        if self.reads_output(i) and not self.reads_input(i):
            kept -= self.activation_bytes_B[i]  # counted for the stage before alone
        return kept

    def reads_input(self, b: int) -> bool:
        return self.input_read_B[b] if self.input_read_B else True

    def reads_output(self, b: int) -> bool:
        return self.output_read_B[b] if self.output_read_B else False

    def buffer_bytes(self, b: int) -> int:
        """Buffers of a cut at b on either side: one activation and one gradient."""
        if b in (0, len(self)) or not self.counts_buffers:
            return 0
        return self.activation_bytes_B[b] + self.gradient_bytes_B[b]

    def held_bytes(self, i: int, j: int) -> int:
        """Bytes that a stage [i, j) holds throughout, buffers included."""
        return self.weight_bytes(i, j) + self.buffer_bytes(i) + self.buffer_bytes(j)

    def weight_bytes(self, i: int, j: int) -> int:
        held_B = self._sums[2]
        return held_B[j] - held_B[i]

    def extra_bytes(self, i: int, j: int) -> int:
        return max(self.extra_bytes_L[i:j], default=0)

    def stage_bytes(self, i: int, j: int, in_flight: int) -> int:
        """Peak bytes of a rank that runs only [i, j) with so many micro-batches in flight."""
        held = self.held_bytes(i, j) + self.extra_bytes(i, j)
        return held + self.copies(in_flight) * self.keep_bytes(i, j)

    def copies(self, in_flight: int) -> int:
        """No more micro-batches are in flight than there are."""
        return in_flight if self.microbatches is None else min(in_flight, self.microbatches)

    @cached_property
    def least_period_ns(self) -> int:
        """No pipeline has a shorter period: the load is shared by all ranks, and what no cut
        divides runs on one."""
        largest = max(self.load_ns(i, j) for i, j in pairwise(self.cuts))
        return max(1, ceil_div(self.load_ns(0, len(self)), self.ranks), largest)

    @cached_property
    def longest_period_ns(self) -> int:
        """Everything one after another, made again where it can be: no schedule needs more."""
        total = self.load_ns(0, len(self)) + sum(map(sum, self.transfers_ns_B))
        return max(1, total + sum(self.forward_ns_L if self.inner_bytes_L else ()))

    @cached_property
    def _segments(self) -> Segments:
        return Segments(
            self.forward_ns_L, self.kept_bytes_L, self.inner_bytes_L, self.activation_bytes_B
        )

    def ways(self, i: int, j: int) -> Iterator[StageWay]:
        """The ways of a stage, from the fastest: all is kept, then those of `segments.py` that
        no other beats in time and bytes."""
        plain = self.way(i, j, ())
        yield plain
        if not self.inner_bytes_L:
            return
        ways = [self.way(i, j, remade) for remade in self._segments.options(i, j) if remade]
        ways.sort(key=lambda way: (way.load_ns, way.keep_bytes, way.extra_bytes))
        best = [plain]
        for way in ways:
            if all(way.keep_bytes < x.keep_bytes or way.extra_bytes < x.extra_bytes for x in best):
                best.append(way)
                yield way

    def way(self, i: int, j: int, remade: tuple[Range, ...]) -> StageWay:
        """A segment made again takes the room of what later layers kept, and more if need be."""
        load, keep, extra = self.load_ns(i, j), self.keep_bytes(i, j), self.extra_bytes(i, j)
        if not remade:
            return StageWay(load, keep, extra)
        segments, freed = self._segments, 0
        if remade[0][0] == i and self.reads_output(i) and not self.reads_input(i):
            keep += self.activation_bytes_B[i]
        behind = j
        for a, b in reversed(remade):
            load += sum(self.forward_ns_L[a:b])
            dropped = segments.dropped(a, b)
            freed += sum(self.kept_bytes_L[b:behind])
            still = self.activation_bytes_B[b] if b < j and self.reads_output(b) else 0
            extra = max(extra, dropped + self.extra_bytes(a, b) - max(0, freed - still))
            freed += segments.input_bytes_L[a]
            keep -= dropped - (segments.input_bytes_L[a] - segments.counted_L[a])
            behind = a
        return StageWay(load, keep, extra, remade)
