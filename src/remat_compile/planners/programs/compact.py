"""The compact ILP: which optional events run, so that memory stays under the budget.

Rows and columns. R[e] in {0, 1}: event e runs. For each aNode a and each stretch of the
sequence between two events that touch it, A[a] in {0, 1}: a must be alive there. Going
backwards from the last use,

    A_before >= A_after          where an event may read a, and A_before >= R[e]
    A_before >= A_after - R[e]   where it may make a again
    A_before = 1                 where an event that is not optional reads a
    A_before = 0                 where one makes a

Frees are as early as possible, so nothing else decides what is alive: there are no
variables for creation and deletion and no big constants. The bytes during each event,

    sum size[a] A_before[a] + R[e] (results + workspace)  <=  budget,

count what spec/semantics.md counts; results of a replay that are still alive are made a
second time and dropped. What is alive in any case goes into the right-hand side. A token
exists only where a replay reads it. Not taken from a paper: Zhao 2024, section 2.4, with less.

Four layers x1 = F0(x0) to x4 = F3(x3), 100 bytes and 10 ns each, of which the backward reads both
sides; budget 500. At B6: 500 + 100 A[x1] <= 500, so A[x1] = 0 there. B7 reads x1, and F0 may run
between: A_before >= 1 - R[F0], hence R[F0] = 1, 10 ns. There are 18 optional events and as many
columns for them; 8 more say what is alive where several of them decide it.

    >>> model = compact_model(step, all_events(useful_pairs(step)), 500)
    >>> model.milp.columns, model.milp.rows, model.fixed_ns
    (26, 33, 120)
    >>> with MilpSolver() as solver:
    ...     answer = solver.solve(model.milp, 60.0)
    >>> model.fixed_ns + round(answer.objective * model.scale_ns)
    130
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..instance import Instance
from ..solvers.milp import Milp, MilpBuilder, Vector
from .events import Event


@dataclass(frozen=True, slots=True)
class _Alive:
    """Whether an aNode must be alive: constant + sum of factor * column, 0 or 1."""

    constant: int
    terms: tuple[tuple[int, int], ...] = ()


_NO, _YES = _Alive(0), _Alive(1)


@dataclass(frozen=True, eq=False)
class CompactModel:
    """`event_column[e]` is the column of an optional event, -1 where it is never useful
    or not optional. Objective times `scale_ns` is the time of the replays in ns."""

    milp: Milp
    event_column: list[int]
    scale_ns: float
    fixed_ns: int
    """Time of all that is not optional."""
    fits: bool
    """False where what is alive in any case does not fit."""
    definitions: list[tuple[int, list[_Alive]]]
    """What each liveness column is no less than, in order of dependence."""

    def chosen(self, point: Vector) -> set[int]:
        """The indices of the optional events that a point runs."""
        return {e for e, c in enumerate(self.event_column) if c >= 0 and point[c] > 0.5}

    def point(self, chosen: set[int]) -> Vector:
        """The point that runs these events, with the liveness that follows."""
        point = np.zeros(self.milp.columns)
        for e in chosen:
            if self.event_column[e] >= 0:
                point[self.event_column[e]] = 1.0
        for column, states in self.definitions:
            point[column] = max(
                s.constant + sum(factor * point[other] for other, factor in s.terms) for s in states
            )
        return np.maximum(point, 0.0)


def compact_model(
    instance: Instance,
    events: Sequence[Event],
    limit_bytes: int,
    saved_bytes: int | None = None,
) -> CompactModel:
    """The program for a peak of at most `limit_bytes`.

    `saved_bytes` bounds what is alive when the loss starts. Both count as the instance
    does, what the caller holds included. Linear in the events times what is alive.
    """
    return _Sweep(instance, events, limit_bytes, saved_bytes).run()


class _Sweep:
    """Walks the events backwards; `alive` holds what must be alive after the current one."""

    def __init__(
        self, instance: Instance, events: Sequence[Event], limit_bytes: int, saved: int | None
    ):
        self.inst = instance
        self.events = events
        self.room = limit_bytes - instance.base_bytes
        self.saved = None if saved is None else saved - instance.base_bytes
        self.unit = float(max(1, self.room))
        self.builder = MilpBuilder()
        self.event_column = [-1] * len(events)
        self.alive: dict[int, _Alive] = {}
        self.constant = 0
        self.bytes_of: dict[int, int] = {}
        """Bytes alive per column, besides `constant`."""
        self.fits = True
        self.definitions: list[tuple[int, list[_Alive]]] = []
        again = [instance.retime_C[e.cnode] for e in events if e.optional]
        self.scale_ns = max(1.0, sum(again) / max(1, len(again)))

    def run(self) -> CompactModel:
        inst = self.inst
        for a, kept in enumerate(inst.kept_A):
            if kept and inst.writer_A[a] >= 0:
                self._set(a, _YES)
        fixed_ns = 0
        for e in range(len(self.events) - 1, -1, -1):
            event = self.events[e]
            if event.optional:
                self._maybe(e, event.cnode)
            else:
                times = inst.time_C if event.first else inst.retime_C
                fixed_ns += times[event.cnode]
                self._always(event.cnode, event.first)
        return CompactModel(
            self.builder.build(),
            self.event_column,
            self.scale_ns,
            fixed_ns,
            self.fits,
            self.definitions,
        )

    def _get(self, a: int) -> _Alive:
        return self.alive.get(a, _NO)

    def _set(self, a: int, new: _Alive) -> None:
        old = self._get(a)
        if old == new:
            return
        size = self.inst.size_A[a]
        for state, sign in ((old, -size), (new, size)):
            self.constant += sign * state.constant
            for column, factor in state.terms:
                total = self.bytes_of.get(column, 0) + sign * factor
                if total:
                    self.bytes_of[column] = total
                else:
                    self.bytes_of.pop(column, None)
        if new == _NO:
            del self.alive[a]
        else:
            self.alive[a] = new

    def _always(self, c: int, first: bool) -> None:
        """An event that runs in any case."""
        inst = self.inst
        writes = inst.writes_C[c] if first else inst.rewrites_C[c]
        own = inst.workspace_C[c] if first else inst.reworkspace_C[c]
        ends, token = inst.ends_C[c], inst.token_C[c]
        for a in writes:
            if not inst.kept_A[a] or first:
                self._set(a, _NO)
            if ends < 0:
                own += inst.size_A[a]
        beside: dict[int, int] = {}
        if token >= 0 and first:
            state = self._get(token)
            own += inst.size_A[token] * state.constant
            for column, factor in state.terms:
                beside[column] = inst.size_A[token] * factor
            self._set(token, _NO)
        elif token >= 0:
            self._set(token, _YES)
        for a in inst.reads_C[c] if first else inst.rereads_C[c]:
            self._set(a, _YES)
        self._bound(own, beside, self.room)
        if c == inst.loss and self.saved is not None:
            self._bound(0, {}, self.saved)

    def _maybe(self, e: int, c: int) -> None:
        """An optional replay; left out of the program where nothing needs its results."""
        inst = self.inst
        writes = [a for a in inst.rewrites_C[c] if not inst.kept_A[a]]
        if all(self._get(a) == _NO for a in writes):
            return
        run = self.builder.column(inst.retime_C[c] / self.scale_ns)
        self.event_column[e] = run
        for a in writes:
            self._set(a, self._unless(self._get(a), run, len(writes) == 1))
        token = inst.token_C[c]
        reads = inst.rereads_C[c] if token < 0 else (*inst.rereads_C[c], token)
        freed = False
        for a in reads:
            after = self._get(a)
            self._set(a, self._also(after, run))
            freed = freed or after != self._get(a)
        if freed or len(writes) != 1 or inst.reworkspace_C[c] or len(inst.rewrites_C[c]) != 1:
            own = inst.reworkspace_C[c] + sum(inst.size_A[a] for a in inst.rewrites_C[c])
            self._bound(0, {run: own}, self.room)
        # Else all that is alive during the event is alive during the next one too.

    def _unless(self, after: _Alive, run: int, alone: bool) -> _Alive:
        """Before an event that may make it: A_before >= A_after - R."""
        if after == _NO:
            return _NO
        before = _Alive(after.constant, (*after.terms, (run, -1)))
        if after == _YES:
            return before
        if alone:
            # A replay is of no use but for this result: with R = 1, A_after = 1.
            self.builder.row(before.terms, lower=-float(before.constant))
            return before
        return self._at_least([before])

    def _also(self, after: _Alive, run: int) -> _Alive:
        """Before an event that may read it: A_before >= A_after and A_before >= R."""
        read = _Alive(0, ((run, 1),))
        if after == _YES:
            return _YES
        if after == _NO:
            return read
        return self._at_least([after, read])

    def _at_least(self, states: list[_Alive]) -> _Alive:
        """A new column that is no less than each of these."""
        column = self.builder.column()
        self.definitions.append((column, states))
        for state in states:
            entries = [(other, -float(factor)) for other, factor in state.terms]
            self.builder.row([(column, 1.0), *entries], lower=float(state.constant))
        return _Alive(0, ((column, 1),))

    def _bound(self, own: int, beside: dict[int, int], room: int) -> None:
        """Row: what is alive, and `own` and `beside` on top, is at most `room` bytes."""
        total = dict(self.bytes_of)
        for column, size in beside.items():
            total[column] = total.get(column, 0) + size
        left = room - self.constant - own
        if left < 0 and not any(size < 0 for size in total.values()):
            self.fits = False
        if sum(size for size in total.values() if size > 0) <= left:
            return
        terms = [(column, size / self.unit) for column, size in total.items() if size]
        if terms:
            self.builder.row(terms, upper=left / self.unit)
