"""The bytes of a window's program: rows for values kept, made again, or on the host.

Events and liveness are those of the compact ILP (`programs/compact`). A *detour* is a stretch of
the plan through which one instance of a tensor may be on the host. Beside R[e] (an optional
execution runs) and A (a tensor must be there):

    O[g]       the detour g is taken
    y[g, f]    its bytes are given back at boundary f; over all f these sum to O[g]
    z[g, i]    its way back is issued, and its bytes are taken, at boundary i; these sum to O[g]

    bytes during event e:  ... - sum size[g] (sum over f <= e of y - sum over i <= e of z) <= budget
    A >= O[g]          from where it is made to where it is back
    R[e] + O[g] <= 1   where e would use the tensor meanwhile, or make it again
    O[g] <= R[e]       where e makes it
    host bytes from behind its making to behind where it is back:  sum size[g] O[g] <= host

Bytes are exact: `place.within` and the simulator count the same.

Four tensors of 100 bytes, made by events 0 to 3 and read by 7 to 4, budget 300. The first may be
given back at boundary 3, and its way back be issued at 5 or 6: 400 - 100 y[3] <= 300 while event 3
runs, so it is moved, by either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..instance import Instance
from ..programs.compact import EventSweep
from ..programs.events import PossibleRun
from ..programs.liveness_rows import YES, AliveSum


@dataclass(frozen=True, slots=True)
class Detour:
    """Positions are indices of events; boundary i is just before event i.

    `made` is the event that makes the instance, `last` the last that may use it before the detour,
    `back` the first after it. `against`: optional events that do not run if it is taken. `needs`:
    the optional event that makes it, -1 where that runs in any case. A `fixed` one is taken.
    """

    anode: int
    size_bytes: int
    made: int
    last: int
    back: int
    frees: tuple[int, ...]
    issues: tuple[int, ...]
    against: tuple[int, ...] = ()
    needs: int = -1
    fixed: bool = False


class WindowRows(EventSweep):
    """Detours on top of the compact ILP; the objective is left to `WindowClock`."""

    def __init__(
        self,
        instance: Instance,
        events: Sequence[PossibleRun],
        detours: Sequence[Detour],
        limit_bytes: int,
    ):
        super().__init__(instance, events, limit_bytes)
        self.detours = detours
        self.each_event = True
        self.taken: list[AliveSum] = []
        """O of each detour."""
        self.frees: list[dict[int, int]] = []
        self.issues: list[dict[int, int]] = []
        self.of_anode: dict[int, list[int]] = defaultdict(list)
        for k, detour in enumerate(detours):
            self._columns(detour)
            self.of_anode[detour.anode].append(k)
        self.away: dict[int, int] = defaultdict(int)
        self.away_bytes = 0
        self.until: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """For each boundary what is no longer counted before it: column (-1: none) and bytes."""
        for k, detour in enumerate(detours):
            self._count(k, detour)
        self.against: dict[int, list[int]] = defaultdict(list)
        self.needed: dict[int, list[int]] = defaultdict(list)
        for k, detour in enumerate(detours):
            for e in detour.against:
                self.against[e].append(k)
            if detour.needs >= 0:
                self.needed[detour.needs].append(k)
        self._one_at_a_time()

    def _columns(self, detour: Detour) -> None:
        if detour.fixed:
            self.taken.append(YES)
            self.frees.append({})
            self.issues.append({})
            return
        taken = self.builder.column()
        self.taken.append(AliveSum.any_of([taken]))
        for at, chosen in ((detour.frees, self.frees), (detour.issues, self.issues)):
            if len(at) == 1:
                chosen.append({at[0]: taken})
                continue
            columns = {boundary: self.builder.column() for boundary in at}
            terms = [(column, 1.0) for column in columns.values()]
            self.builder.row([*terms, (taken, -1.0)], lower=0.0, upper=0.0)
            chosen.append(columns)

    def _count(self, k: int, detour: Detour) -> None:
        """The bytes that it saves, counted behind the last boundary."""
        size = detour.size_bytes
        if detour.fixed:
            signed = [(-1, detour.frees[0], size), (-1, detour.issues[0], -size)]
        else:
            signed = [(c, f, size) for f, c in self.frees[k].items()]
            signed += [(c, i, -size) for i, c in self.issues[k].items()]
        for column, boundary, change in signed:
            if boundary >= len(self.events):
                continue
            if column < 0:
                self.away_bytes += change
            else:
                self.away[column] += change
            self.until[boundary].append((column, change))

    def _one_at_a_time(self) -> None:
        """At most one of a tensor's overlapping detours is taken."""
        for ks in self.of_anode.values():
            for n, k in enumerate(ks):
                for other in ks[:n]:
                    a, b = self.detours[k], self.detours[other]
                    if a.made < b.back and b.made < a.back:
                        self._at_most_one(self.taken[k], self.taken[other])

    def _at_most_one(self, *states: AliveSum) -> None:
        terms = [(column, float(factor)) for state in states for column, factor in state.terms]
        self.builder.row(terms, upper=1.0 - sum(state.constant for state in states))

    def begin(self, e: int) -> None:
        for column, change in self.until.pop(e + 1, ()):
            if column < 0:
                self.away_bytes -= change
            else:
                self.away[column] -= change

    def bound(self, own: int, beside: dict[int, int], room: int) -> None:
        counted = dict(beside)
        for column, size in self.away.items():
            if size:
                counted[column] = counted.get(column, 0) - size
        super().bound(own - self.away_bytes, counted, room)

    def end(self, e: int) -> None:
        """The bytes on the host do not exceed its budget."""
        event, inst = self.events[e], self.inst
        c = event.cnode
        reads = inst.reads_C[c] if event.first else inst.rereads_C[c]
        writes = inst.writes_C[c] if event.first else inst.rewrites_C[c]
        for a in {*reads, *writes, inst.token_C[c]}:
            for k in self.of_anode.get(a, ()):
                detour = self.detours[k]
                if detour.made < e <= detour.back:
                    self._at_least(self.get(a), self.taken[k])
        column = self.event_column[e]
        if column >= 0:
            for k in self.against.get(e, ()):
                self._at_most_one(AliveSum.any_of([column]), self.taken[k])
        for k in self.needed.get(e, ()):
            runs = AliveSum.any_of([column]) if column >= 0 else AliveSum(0)
            self._at_least(runs, self.taken[k])

    def _at_least(self, high: AliveSum, low: AliveSum) -> None:
        """Row: high >= low."""
        if high == YES:
            return
        terms: dict[int, float] = defaultdict(float)
        for state, sign in ((high, 1.0), (low, -1.0)):
            for column, factor in state.terms:
                terms[column] += sign * factor
        self.builder.row(list(terms.items()), lower=float(low.constant - high.constant))

    def price(self, c: int) -> float:
        """Nothing: the end of the step is what is minimised."""
        return 0.0

    def bound_host(self, host_bytes: int) -> None:
        """Rows: what is on the host at any time fits there."""
        unit = float(max(1, host_bytes))
        for begin in {detour.made for detour in self.detours}:
            held = [k for k, g in enumerate(self.detours) if g.made <= begin < g.back]
            total = host_bytes
            terms: dict[int, float] = defaultdict(float)
            for k in held:
                size = self.detours[k].size_bytes
                total -= size * self.taken[k].constant
                for column, _ in self.taken[k].terms:
                    terms[column] += size / unit
            if total < 0:
                self.fits = False
            if terms:
                self.builder.row(list(terms.items()), upper=total / unit)
