"""The comparator of offload.py: copies hidden inside their own layer, as published planners ask.

Rules of torchtitan's `auto_perf_maxing` (PR 4636), as we read its linear program: what leaves a
layer may take no longer on the link than the layer's forward, and what comes back no longer than
its backward; the last layer moves nothing; tensors of at least 1 MiB; copies cost no time;
recomputed is what is cheapest for its bytes, but never a layer's output or what draws random
numbers. Where theirs takes shares of a layer, this takes whole tensors, counts exact bytes, and
lets a copy that is late stall: so it is no weaker than theirs but for the rounding to tensors.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from time import monotonic

from remat_compile.ir.program import Budget, Program
from remat_compile.planners.instance import Instance, Order, order_without
from remat_compile.planners.offload.copies.gaps import Gap, gaps_of
from remat_compile.planners.offload.copies.place import Move, times_of
from remat_compile.planners.offload.copies.task import CopyTask

_LAYER = re.compile(r"\bblocks\.(\d+)")
_LEAST_BYTES = 1 << 20


def layer_windows(program: Program, budget: Budget) -> int | None:
    """Nanoseconds of the fastest plan of these rules that was found under the budget; None where
    there is none."""
    task = CopyTask.of(program, budget, "layer-windows", monotonic() + 3600)
    layers = _Layers(task.instance)
    cheapest = layers.recomputable()

    def try_count(count: int) -> bool:
        return layers.try_order(task, order_without(task.instance, frozenset(cheapest[:count])))

    bisect_left(range(len(cheapest) + 1), True, key=try_count)
    return None if task.best is None else task.best.time_ns


class _Layers:
    def __init__(self, inst: Instance):
        self.inst = inst
        self.of_C = [self._layer(c) for c in range(inst.loss)]
        self.count = max(self.of_C) + 1
        self.crossing = {
            a
            for c in range(inst.loss)
            for a in inst.reads_C[c]
            if inst.writer_A[a] >= 0 and self.of_C[inst.writer_A[a]] != self.of_C[c]
        }

    def _layer(self, c: int) -> int:
        """By the module that the line of source ran in; -1 outside the layers."""
        loc = self.inst.program.graph.cnodes[c].loc
        match = _LAYER.search(loc.module or "") if loc is not None else None
        return int(match[1]) if match else -1

    def recomputable(self) -> list[int]:
        """Those that may be dropped, the cheapest for a byte first."""
        inst = self.inst
        price = {
            c: inst.retime_C[c] / size
            for c in range(inst.loss)
            if self.of_C[c] >= 0
            and inst.makable_C[c]
            and inst.token_C[c] < 0
            and not self.crossing.intersection(inst.writes_C[c])
            and (size := sum(inst.size_A[a] for a in inst.rewrites_C[c]))
        }
        return sorted(price, key=lambda c: (price[c], c))

    def try_order(self, task: CopyTask, order: Order) -> bool:
        """Whether the order fits with as many bytes of each layer on the host as its windows
        take."""
        inst, target = self.inst, task.instance.program.target
        times = times_of(inst, order)
        loss = order.index(inst.loss)
        ends = self._ends(order, loss)
        starts = self._starts(order, loss)
        moves: list[Move] = []
        for layer in range(self.count - 1):
            forward = sum(
                t for t, c in zip(times[:loss], order, strict=False) if self._is(c, layer)
            )
            stop = starts[layer - 1] if layer else len(order)
            backward = sum(times[starts[layer] : stop])
            rates = (target.d2h_bytes_per_s or 0, target.h2d_bytes_per_s or 0)
            room = min(forward * rates[0], backward * rates[1]) // 10**9
            for gap in self._dearest(order, loss, layer):
                if gap.size_bytes <= room:
                    room -= gap.size_bytes
                    free = max(ends[layer], gap.last + 1)
                    issue = min(max(starts[layer + 1], free), gap.back)
                    moves.append(Move(gap, free, issue))
        return task.try_moves(order, moves) is not None

    def _is(self, c: int, layer: int) -> bool:
        return c < self.inst.loss and self.of_C[c] == layer

    def _ends(self, order: Order, loss: int) -> list[int]:
        """The boundary behind the forward of each layer."""
        return [
            1 + max(i for i, c in enumerate(order[:loss]) if self._is(c, layer))
            for layer in range(self.count)
        ]

    def _starts(self, order: Order, loss: int) -> list[int]:
        """The boundary before the backward of each layer: where it is first replayed, or what no
        other layer reads is first read."""
        inst = self.inst
        starts = [len(order)] * self.count
        for i in range(len(order) - 1, loss, -1):
            makers = {inst.writer_A[a] for a in inst.reads_C[order[i]] if a not in self.crossing}
            for c in {order[i], *makers}:
                if 0 <= c < inst.loss and self.of_C[c] >= 0:
                    starts[self.of_C[c]] = i
        for layer in range(self.count - 2, -1, -1):
            starts[layer] = max(starts[layer], starts[layer + 1])
        return starts

    def _dearest(self, order: Order, loss: int, layer: int) -> Sequence[Gap]:
        """What waits through the loss, dearest for a byte first."""
        inst = self.inst
        gaps = [
            gap
            for gap in gaps_of(inst, order, _LEAST_BYTES)
            if self._is(order[gap.made], layer) and gap.last < loss < gap.back
        ]
        return sorted(
            gaps, key=lambda gap: (-inst.retime_C[order[gap.made]] / gap.size_bytes, gap.made)
        )
