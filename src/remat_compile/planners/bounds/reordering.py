"""A better order of first executions, by local search over the bounds of single moments.

What an order can cost is judged by the relaxed programs of its fullest moments (`moments`), and
where even what is needed at one does not fit, by what is missing. A move puts one cNode later:
the one that runs in the worst moment, or one whose results only wait there. It never passes a
reader of what it makes, an accumulate that ends what it reads, the loss or an optimizer step;
random operators, accumulates and the loss stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, isfinite
from time import monotonic

from ...ir.program import Program
from ..instance import Instance, Order
from ..solvers import MilpSolver
from .moments import cut_program, cuts_over, least_bytes

Shortfall = tuple[int, float]
"""Bytes that are missing at the worst moment, and the least time of replays for another."""

_MOMENTS = 4
"""The fullest moments of an order that are looked at."""
_WAITING = 3
"""The largest tensors that wait in the worst moment, of which the makers may move."""
_PLACES = 8
"""Limit on the places tried for each cNode."""


class Reordering:
    """`moved` counts the moves that the search made."""

    def __init__(self, instance: Instance, limit_bytes: int, solver: MilpSolver):
        self.instance = instance
        self.limit_bytes = limit_bytes
        self.solver = solver
        self.moved = 0

    def program(self, order: Order) -> Program:
        """The same step, captured in this order."""
        program = self.instance.program
        cnodes = tuple(program.graph.cnodes[c] for c in order)
        return replace(program, graph=replace(program.graph, cnodes=cnodes))

    def run(self, deadline: float) -> Order | None:
        """The best order found until the deadline; None where it is that of capture."""
        best = self.instance.capture
        shortfall, worst = self._shortfall(best, deadline)
        while worst is not None and monotonic() < deadline:
            step = self._step(best, shortfall, worst, deadline)
            if step is None:
                break
            best, shortfall, worst = step
            self.moved += 1
        return best if self.moved else None

    def _step(
        self, order: Order, shortfall: Shortfall, worst: int, deadline: float
    ) -> tuple[Order, Shortfall, int | None] | None:
        """The best move from `order`, with its shortfall and worst moment; None: none gains."""
        best: tuple[Order, Shortfall, int | None] | None = None
        for other in self._moves(order, worst):
            if monotonic() >= deadline:
                break
            other_shortfall, other_worst = self._shortfall(other, deadline)
            if other_shortfall < shortfall:
                best, shortfall = (other, other_shortfall, other_worst), other_shortfall
        return best

    def _shortfall(self, order: Order, deadline: float) -> tuple[Shortfall, int | None]:
        """The bytes of the fullest moments, and the place in `order` with the most."""
        inst = Instance.of(self.program(order), self.instance.kind)
        room = self.limit_bytes - inst.base_bytes
        least = least_bytes(inst)
        if (most := max(least)) > room:
            return (most - room, inf), least.index(most)
        worst: tuple[Shortfall, int | None] = (0, 0.0), None
        for k in cuts_over(inst, self.limit_bytes)[:_MOMENTS]:
            cut = cut_program(inst, self.limit_bytes, k)
            answer = self.solver.solve(cut.milp.relaxed(), max(0.1, deadline - monotonic()))
            time = answer.bound * cut.scale_ns if isfinite(answer.bound) else inf
            if worst[1] is None or time > worst[0][1]:
                worst = (0, time), k
        return worst

    def _moves(self, order: Order, worst: int) -> Iterator[Order]:
        """Orders with one cNode put later."""
        for place in self._movable(order, worst):
            first, last = max(place, worst) + 1, self._latest(order, place)
            count = min(_PLACES, last - first + 1)
            for step in range(count):
                to = last - (last - first) * step // max(1, count - 1)
                yield [*order[:place], *order[place + 1 : to + 1], order[place], *order[to + 1 :]]

    def _movable(self, order: Order, worst: int) -> list[int]:
        """Places of cNodes: the one of the worst moment, and makers of what waits there."""
        inst = self.instance
        now = set(inst.reads_C[order[worst]])
        waits: list[tuple[int, int]] = []
        for place in range(worst):
            c = order[place]
            size = sum(inst.size_A[a] for a in inst.writes_C[c] if not inst.kept_A[a])
            if size and not now & set(inst.writes_C[c]) and self._latest(order, place) > worst:
                waits.append((size, place))
        waits.sort(reverse=True)
        places = [worst, *(place for _, place in waits[:_WAITING])]
        return [place for place in places if self._is_free(order[place])]

    def _is_free(self, c: int) -> bool:
        inst = self.instance
        return c != inst.loss and inst.token_C[c] < 0 and inst.ends_C[c] < 0

    def _latest(self, order: Order, place: int) -> int:
        """The last place where the cNode of `place` may run instead."""
        inst = self.instance
        c = order[place]
        makes, reads = set(inst.writes_C[c]), set(inst.reads_C[c])
        for to in range(place + 1, len(order)):
            other = order[to]
            if (
                other == inst.loss
                or inst.phase_C[other] == "opt"
                or inst.ends_C[other] in reads
                or makes & set(inst.reads_C[other])
            ):
                return to - 1
        return len(order) - 1
