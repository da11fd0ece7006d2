"""The integer program that decides if an allocation has a 1-periodic schedule of a given period.

Shilova 2021, chapter 6, for stages instead of layers and with the period as a constant, which
makes the bytes linear. Operations are forwards, backwards and the transfers between ranks, in the
order of one micro-batch. Operation o of micro-batch n begins at s_o + T (k_o + n), 0 <= s_o < T:

* s_next + T k_next >= s_o + d_o + T k_o along the chain;
* two operations of one rank or link: s_b - s_a >= d_a - T (1 - y), s_a - s_b >= d_b - T y;
* bytes of a rank when its operation o begins: what is held, and for each of its stages t
  keep_t (k_B - k_F + [F_t not after o] - [B_t before o]), with [.] read off y.

Durations are rounded up to a thousandth of the period, starts are then computed anew in
nanoseconds. A schedule for T gives one for each longer period, so T is found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Literal

from ...solvers import MilpBuilder, MilpSolver
from ..layers import Layers, Range, StageWay, ceil_div
from ..pattern import Pattern

_SHORTEST_S = 5.0
_PARTS = 2000
"""Units of a period; a shorter one is taken as it is."""
Verdict = Pattern | Literal["infeasible", "unknown"]
Place = tuple[str, int, int] | None


@dataclass(frozen=True)
class PeriodicProgram:
    """Stages in order with their ranks and ways; neighbours are on different ranks."""

    layers: Layers
    stages: tuple[Range, ...]
    ranks: tuple[int, ...]
    ways: tuple[StageWay, ...]

    @property
    def least_period_ns(self) -> int:
        """The largest load of a rank or a link."""
        load: dict[Place, int] = {}
        for place, ns in self.operations():
            load[place] = load.get(place, 0) + ns
        load.pop(None, None)
        return max(1, *load.values())

    @staticmethod
    def is_exact(period_ns: int) -> bool:
        """False where durations are rounded up, so that "infeasible" is said of those."""
        return period_ns < 2 * _PARTS

    def operations(self) -> list[tuple[Place, int]]:
        """Place and duration of each: forward and transfer of each stage in turn, then back."""
        layers, last = self.layers, len(self.stages) - 1
        forward: list[tuple[Place, int]] = []
        backward: list[tuple[Place, int]] = []
        for t, (i, j) in enumerate(self.stages):
            place: Place = ("rank", self.ranks[t], 0)
            forward_ns = sum(layers.forward_ns_L[i:j])
            forward.append((place, forward_ns))
            backward.append((place, self.ways[t].load_ns - forward_ns))
            if t < last:
                a, b = self.ranks[t], self.ranks[t + 1]
                link: Place = ("link", min(a, b), max(a, b)) if a != b else None
                act, grad = layers.transfers_ns_B[j] if a != b else (0, 0)
                forward.append((link, act))
                backward.append((link, grad))
        return [*forward, *reversed(backward)]

    def solve(
        self, period_ns: int, solver: MilpSolver, limit_s: float, *, shortest: bool = False
    ) -> Verdict:
        """A schedule of this period, or why there is none; with `shortest` the one of the shortest
        life of a micro-batch that is found in time."""
        operations = self.operations()
        unit = max(1, period_ns // _PARTS)
        period = period_ns // unit
        duration = [ceil_div(ns, unit) for _, ns in operations]
        n = len(operations)
        builder = MilpBuilder()
        start = [builder.column(0.0, 0, period if o else 0, integer=False) for o in range(n)]
        shift = [builder.column(0.0, 0, 2 * n if o else 0) for o in range(n)]
        if shortest:
            builder.price(start[-1], 1.0)
            builder.price(shift[-1], float(period))
        for o in range(n - 1):
            builder.row(
                [(start[o + 1], 1), (shift[o + 1], period), (start[o], -1), (shift[o], -period)],
                duration[o],
            )
        first: dict[tuple[int, int], int] = {}
        for a in range(n):
            for b in range(a + 1, n):
                if operations[a][0] is not None and operations[a][0] == operations[b][0]:
                    y = first[a, b] = builder.column()
                    ends = [(start[b], 1.0), (start[a], -1.0), (y, -float(period))]
                    builder.row(ends, duration[a] - period)
                    builder.row([(c, -v) for c, v in ends], duration[b])
        for rank in set(self.ranks):
            self._bytes(builder, rank, shift, first)
        answer = solver.solve(builder.build(), limit_s)
        if answer.point is None:
            return "infeasible" if answer.status == "infeasible" else "unknown"
        shifts = [round(answer.point[k]) for k in shift]
        orders = {pair: answer.point[y] > 0.5 for pair, y in first.items()}
        return self._in_ns(period_ns, shifts, orders)

    def _bytes(
        self, builder: MilpBuilder, rank: int, shift: list[int], first: dict[tuple[int, int], int]
    ) -> None:
        layers, n = self.layers, len(shift)
        mine = [t for t, r in enumerate(self.ranks) if r == rank]
        held = sum(layers.held_bytes(*self.stages[t]) for t in mine)
        largest = max(layers.limit_bytes, 1)
        for t0 in mine:
            extra = {2 * t0: layers.extra_bytes(*self.stages[t0])}
            if self.ways[t0].extra_bytes:
                extra[n - 1 - 2 * t0] = self.ways[t0].extra_bytes
            for o, own in extra.items():
                terms: dict[int, float] = {}
                constant = held + own
                for t in mine:
                    keep = self.ways[t].keep_bytes
                    forward, backward = 2 * t, n - 1 - 2 * t
                    terms[shift[backward]] = terms.get(shift[backward], 0) + keep
                    terms[shift[forward]] = terms.get(shift[forward], 0) - keep
                    for op, sign in ((forward, 1), (backward, -1)):
                        if op == o:
                            constant += keep if op == forward else 0
                        elif op < o:
                            terms[first[op, o]] = terms.get(first[op, o], 0) + sign * keep
                        else:
                            terms[first[o, op]] = terms.get(first[o, op], 0) - sign * keep
                            constant += sign * keep
                # In parts of the memory: a solver's tolerance is absolute.
                row = [(c, v / largest * 1000) for c, v in terms.items()]
                builder.row(row, upper=(layers.limit_bytes - constant) / largest * 1000)

    def _in_ns(
        self, period_ns: int, shifts: list[int], orders: dict[tuple[int, int], bool]
    ) -> Verdict:
        """The earliest starts with these shifts and orders: longest paths."""
        operations = self.operations()
        n = len(operations)
        edges = [
            (o, o + 1, operations[o][1] + period_ns * (shifts[o] - shifts[o + 1]))
            for o in range(n - 1)
        ]
        for (a, b), a_first in orders.items():
            x, z = (a, b) if a_first else (b, a)
            edges += [(x, z, operations[x][1]), (z, x, operations[z][1] - period_ns)]
        at = [0] * n
        for _ in range(n + 1):
            changed = False
            for x, z, ns in edges:
                if at[x] + ns > at[z]:
                    at[z], changed = at[x] + ns, True
            if not changed:
                break
        else:
            return "unknown"
        begins = [at[o] + period_ns * shifts[o] for o in range(n)]
        low = min(begins)
        begins = [ns - low for ns in begins]
        half = n // 2
        return Pattern(period_ns, tuple(begins[:half]), tuple(reversed(begins[half:])))

    def least(
        self, solver: MilpSolver, deadline: float, below_ns: int | None = None, unit_ns: int = 1
    ) -> tuple[Pattern | None, bool]:
        """The schedule of the least period, of the multiples of `unit_ns`, and whether no question
        stayed open. Only periods below `below_ns` are asked for."""
        low = ceil_div(self.least_period_ns, unit_ns)
        high = max(low, ceil_div(sum(ns for _, ns in self.operations()), unit_ns))
        if below_ns is not None:
            high = min(high, (below_ns - 1) // unit_ns)
        if high < low:
            return None, True
        best, decided = None, True

        def ask(units: int) -> Verdict:
            left = deadline - monotonic()
            return "unknown" if left <= 0 else self.solve(units * unit_ns, solver, left)

        verdict = ask(high)
        if not isinstance(verdict, Pattern):
            return None, verdict == "infeasible"
        best = verdict
        while high > low:
            middle = (low + high) // 2
            verdict = ask(middle)
            if isinstance(verdict, Pattern):
                best, high = verdict, middle
                continue
            decided = decided and verdict == "infeasible"
            low = middle + 1
        if self.layers.microbatches is not None and (left := deadline - monotonic()) > 0:
            limit_s = min(left, _SHORTEST_S)
            verdict = self.solve(high * unit_ns, solver, limit_s, shortest=True)
            best = verdict if isinstance(verdict, Pattern) else best
        return best, decided
