"""Which parameters and gradients to have on the host: a linear program over segments of an order.

The program of `blocks/program.py` without updates: nothing is written that would have to go to the
host, and the step is not a cycle, since a home on the host is one between steps. Segment t = 0 is
before the first entry and takes no time, as the last one after all. Fractions of group w in segment
t:

    Sto[t]   on the device;  home on the host: 1 - Sto[0]
    Prf[t]   on the way to the device; there from the next segment on, or in time for its own
             segment's use, which waits
    Gra[t]   of its gradient on the device;  Ofl[t] on the way to the host

    Sto[t] = 1 where w is used;  Sto[t] >= Sto[0]
    Sto[t+1] <= Sto[t] + Prf[t] (+ Prf[t+1] where w is used)
    Gra[t] = 1 where it is written;  Gra[t+1] >= Gra[t] - Ofl[t]
    sum |w| (Sto + Prf where not used) + |w|_g Gra + all else of the segment <= budget
    sum |w| (1 - Sto[0]) + |w|_g (1 - Gra[end]) <= bytes of the host
    Time >= computations + |w| Prf / h2d where used;  >= |w| Prf / h2d;  >= |w|_g Ofl / d2h;
         >= all of both / both

and the least sum of Time, with a little for each copy.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ...solvers import MilpBuilder, MilpSolver
from ...solvers.milp import INFINITY, Terms, Vector
from ..blocks.rounding import at_least
from .movable import Grad, MovableOrder, Param
from .place import Choice, Gap, gaps_of, is_home_gap

_PRICE = 0.01
_MOST_SEGMENTS = 48
_NEAR = 1e-6


def segments_of(view: MovableOrder, most: int) -> list[range]:
    """The entries in at most so many rows: a new one begins with an entry that reads a parameter
    which the row has not, once the row has its share of the time or of the bytes of parameters."""
    used: dict[int, list[Param]] = defaultdict(list)
    for param in view.params:
        for i in param.uses:
            used[i].append(param)
    read_bytes = sum(p.size_bytes for params in used.values() for p in params)
    share_ns, share_bytes = view.begins_ns[-1] / most, max(1.0, read_bytes * 2 / most)
    rows, begin = list[range](), 0
    names: set[str] = set()
    taken = spent = 0
    for i in range(len(view.order)):
        new = [p for p in used[i] if p.name not in names]
        if i > begin and new and (spent >= share_ns or taken >= share_bytes):
            rows.append(range(begin, i))
            begin, names, taken, spent = i, set(), 0, 0
            new = used[i]
        names.update(p.name for p in new)
        taken += sum(p.size_bytes for p in new)
        spent += view.times_ns[i]
    return [*rows, range(begin, len(view.order))]


@dataclass(frozen=True)
class _Group:
    params: tuple[Param, ...]
    uses: frozenset[int]

    @property
    def size_bytes(self) -> int:
        return sum(param.size_bytes for param in self.params)


class HomesProgram:
    """The rows. Segments are numbered from 1; 0 and `end` have no entries. With a segment for each
    entry and no `price` on copies its optimum bounds the time of every choice in this order."""

    def __init__(
        self,
        view: MovableOrder,
        limit_bytes: int,
        *,
        most_segments: int = _MOST_SEGMENTS,
        price: float = _PRICE,
    ):
        self.view, self.builder, self.price = view, MilpBuilder(), price
        self.rows = segments_of(view, most_segments)
        self.end = len(self.rows) + 1
        self.segment = {i: t for t, row in enumerate(self.rows, 1) for i in row}
        by_uses: dict[frozenset[int], list[Param]] = defaultdict(list)
        for param in view.params:
            if param.uses and param.size_bytes:
                by_uses[frozenset(self.segment[i] for i in param.uses)].append(param)
        self.groups = [_Group(tuple(params), uses) for uses, params in by_uses.items()]
        by_span: dict[tuple[int, int], list[Grad]] = defaultdict(list)
        for grad in view.grads:
            by_span[self.segment[grad.made], self.segment[grad.last]].append(grad)
        self.grads = list(by_span.items())
        self.unit_ns = max(1.0, view.begins_ns[-1] / self.end)
        self.unit_bytes = max(1, limit_bytes)
        steps = range(self.end + 1)
        column = self.builder.column
        self.time = [column(cost=1.0, upper=INFINITY, integer=False) for _ in steps]
        self.sto = [
            [column(lower=float(t in g.uses), integer=False) for t in steps] for g in self.groups
        ]
        self.prf = [[column(integer=False) for _ in steps] for _ in self.groups]
        self.gra = [
            [column(lower=float(made <= t <= last), integer=False) for t in steps]
            for (made, last), _ in self.grads
        ]
        self.ofl = [
            [column(upper=float(t >= last), integer=False) for t in steps]
            for (_, last), _ in self.grads
        ]
        self._flows()
        self._resources(limit_bytes)

    def _flows(self) -> None:
        row = self.builder.row
        for group, sto, prf in zip(self.groups, self.sto, self.prf, strict=True):
            for t in range(self.end):
                own = [(prf[t + 1], -1.0)] if t + 1 in group.uses else []
                row([(sto[t + 1], 1.0), (sto[t], -1.0), (prf[t], -1.0), *own], upper=0.0)
                row([(sto[t + 1], 1.0), (sto[0], -1.0)], lower=0.0)
        for ((_, last), _), gra, ofl in zip(self.grads, self.gra, self.ofl, strict=True):
            for t in range(last, self.end):
                row([(gra[t + 1], 1.0), (gra[t], -1.0), (ofl[t], 1.0)], lower=0.0)

    def _resources(self, limit_bytes: int) -> None:
        view, target = self.view, self.view.program.target
        row = self.builder.row
        sizes = [group.size_bytes for group in self.groups]
        grads = [sum(g.size_bytes for g in some) for _, some in self.grads]
        existing = [sum(g.existing_bytes for g in some) for _, some in self.grads]
        for t in range(self.end + 1):
            entries = self.rows[t - 1] if 0 < t < self.end else range(0)
            acts = max((view.acts_bytes[i] for i in entries), default=0)
            held: Terms = []
            back: Terms = []
            out: Terms = []
            in_time: Terms = []
            for w, size in enumerate(sizes):
                used = t in self.groups[w].uses
                (in_time if used else held).append((self.prf[w][t], size))
                held.append((self.sto[w][t], size))
                back.append((self.prf[w][t], size))
            for w, size in enumerate(grads):
                (made, _), _ = self.grads[w]
                kept = {self.gra[w][self.end]: float(existing[w])}
                if t >= made:
                    kept[self.gra[w][t]] = kept.get(self.gra[w][t], 0.0) + size
                held += kept.items()
                out.append((self.ofl[w][t], size))
            room = (limit_bytes - view.fixed_bytes - acts) / self.unit_bytes
            row([(c, v / self.unit_bytes) for c, v in held], upper=room)
            spent = sum(view.times_ns[i] for i in entries)
            waits = [
                (c, -v * 1e9 / (target.h2d_bytes_per_s or 1) / self.unit_ns) for c, v in in_time
            ]
            row([(self.time[t], 1.0), *waits], lower=spent / self.unit_ns)
            self._moves(t, back, target.h2d_bytes_per_s)
            self._moves(t, out, target.d2h_bytes_per_s)
            self._moves(t, [*back, *out], target.shared_bytes_per_s)
        if target.host_bytes is not None:
            home = [(self.sto[w][0], -size / self.unit_bytes) for w, size in enumerate(sizes)]
            home += [
                (self.gra[w][self.end], -(size + existing[w]) / self.unit_bytes)
                for w, size in enumerate(grads)
            ]
            all_bytes = sum(sizes) + sum(grads) + sum(existing)
            row(home, upper=(target.host_bytes - all_bytes) / self.unit_bytes)

    def _moves(self, t: int, terms: Terms, rate: int | None) -> None:
        """Time_t >= the bytes at this rate."""
        if not rate:
            return
        takes = [(c, size * 1e9 / rate / self.unit_ns) for c, size in terms]
        for column, value in takes:
            self.builder.price(column, max(self.builder.cost(column), self.price * value))
        self.builder.row([(self.time[t], 1.0), *((c, -v) for c, v in takes)], lower=0.0)

    def solve(self, solver: MilpSolver, time_limit_s: float) -> Choice | None:
        """The choice for whole tensors that the program leans to; None where it has no answer."""
        answer = solver.solve(self.builder.build(), time_limit_s)
        if answer.point is None:
            return None
        point = answer.point
        dropped = {gap for p in self.view.params if not p.uses for gap in gaps_of(self.view, p)}
        for w, group in enumerate(self.groups):
            at_home = group.size_bytes * (1 - float(point[self.sto[w][0]]))
            need = at_home - _NEAR * group.size_bytes
            for k in at_least([p.size_bytes for p in group.params], need):
                param = group.params[k]
                for gap in gaps_of(self.view, param):
                    if is_home_gap(gap) or self._is_dropped(w, gap, point):
                        dropped.add(gap)
        sent = set()
        for w, (_, some) in enumerate(self.grads):
            size = sum(g.size_bytes for g in some)
            leaves = size * (1 - float(point[self.gra[w][self.end]]) - _NEAR)
            sent |= {some[k].name for k in at_least([g.size_bytes for g in some], leaves)}
        return Choice(frozenset(dropped), frozenset(sent))

    def _is_dropped(self, w: int, gap: Gap, point: Vector) -> bool:
        """True if in some segment of the gap not all of the group is there."""
        between = range(self.segment[gap[1]] + 1, self.segment[gap[2]])
        there = (point[self.sto[w][t]] + point[self.prf[w][t]] for t in between)
        return min(there, default=1.0) < 1 - 1e-3
