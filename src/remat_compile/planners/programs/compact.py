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
from math import inf
from time import monotonic

import numpy as np

from ..instance import Instance
from ..solvers.milp import Milp, Vector
from .events import PossibleRun
from .liveness_rows import NO, YES, AliveSum, Definition, LivenessRows

MOST_ENTRIES = 20_000_000
"""Limit on the entries of all rows: 1.5 GB here and as much in the solver. They grow with the cube
of the graph: 5.6
million for an encoder-decoder of 575 cNodes."""


class NotStated(Exception):
    """The program is too large, or the time was over before it was stated."""


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
    definitions: list[Definition]
    """Lower bounds of each liveness column, in order of dependence."""

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
    events: Sequence[PossibleRun],
    limit_bytes: int,
    saved_bytes: int | None = None,
    deadline: float = inf,
) -> CompactModel:
    """The program for a peak of at most `limit_bytes`.

    `saved_bytes` bounds what is alive when the loss starts. Both count as the instance
    does, what the caller holds included. Linear in the events times what is alive. NotStated
    with more than `MOST_ENTRIES`, or after `deadline` (`time.monotonic`).
    """
    return EventSweep(instance, events, limit_bytes, saved_bytes).run(deadline)


class EventSweep(LivenessRows):
    """Walks the events backwards; `alive` holds what must be alive after the current one.
    `copying/window_program` adds copies to the host."""

    def __init__(
        self,
        instance: Instance,
        events: Sequence[PossibleRun],
        limit_bytes: int,
        saved: int | None = None,
    ):
        super().__init__(instance.size_A, limit_bytes - instance.base_bytes)
        self.inst = instance
        self.events = events
        self.saved = None if saved is None else saved - instance.base_bytes
        self.event_column = [-1] * len(events)
        self.each_event = False
        """True if bytes may rise between two events for another reason than the event."""
        again = [instance.retime_C[e.cnode] for e in events if e.optional]
        self.scale_ns = max(1.0, sum(again) / max(1, len(again)))

    def run(self, deadline: float) -> CompactModel:
        fixed_ns = self.walk(deadline)
        return CompactModel(
            self.builder.build(),
            self.event_column,
            self.scale_ns,
            fixed_ns,
            self.fits,
            self.definitions,
        )

    def walk(self, deadline: float) -> int:
        """States all rows on bytes; the nanoseconds of what is not optional."""
        inst = self.inst
        for a, kept in enumerate(inst.kept_A):
            if kept and inst.writer_A[a] >= 0:
                self.set(a, YES)
        fixed_ns = 0
        for e in range(len(self.events) - 1, -1, -1):
            if self.builder.entries > MOST_ENTRIES or monotonic() > deadline:
                raise NotStated
            event = self.events[e]
            self.begin(e)
            if event.optional:
                self._maybe(e, event.cnode)
            else:
                times = inst.time_C if event.first else inst.retime_C
                fixed_ns += times[event.cnode]
                self._always(event.cnode, event.first)
            self.end(e)
        return fixed_ns

    def begin(self, e: int) -> None:
        """Before the rows of event `e`; `alive` is what must be there after it."""

    def end(self, e: int) -> None:
        """After the rows of event `e`; `alive` is what must be there before it."""

    def price(self, c: int) -> float:
        """The cost of a replay in the objective."""
        return self.inst.retime_C[c] / self.scale_ns

    def _always(self, c: int, first: bool) -> None:
        """An event that runs in any case."""
        inst = self.inst
        writes = inst.writes_C[c] if first else inst.rewrites_C[c]
        own = inst.workspace_C[c] if first else inst.reworkspace_C[c]
        ends, token = inst.ends_C[c], inst.token_C[c]
        for a in writes:
            if not inst.kept_A[a] or first:
                self.set(a, NO)
            if ends < 0:
                own += inst.size_A[a]
        beside: dict[int, int] = {}
        if token >= 0 and first:
            state = self.get(token)
            own += inst.size_A[token] * state.constant
            for column, factor in state.terms:
                beside[column] = inst.size_A[token] * factor
            self.set(token, NO)
        elif token >= 0:
            self.set(token, YES)
        for a in inst.reads_C[c] if first else inst.rereads_C[c]:
            self.set(a, YES)
        self.bound(own, beside, self.room)
        if c == inst.loss and self.saved is not None:
            self.bound(0, {}, self.saved)

    def _maybe(self, e: int, c: int) -> None:
        """An optional replay; left out of the program where nothing needs its results."""
        inst = self.inst
        writes = [a for a in inst.rewrites_C[c] if not inst.kept_A[a]]
        if all(self.get(a) == NO for a in writes):
            return
        run = self.builder.column(self.price(c))
        self.event_column[e] = run
        runs = AliveSum.any_of([run])
        for a in writes:
            self.set(a, self.unless(self.get(a), runs, alone=len(writes) == 1))
        token = inst.token_C[c]
        reads = inst.rereads_C[c] if token < 0 else (*inst.rereads_C[c], token)
        freed = False
        for a in reads:
            after = self.get(a)
            self.set(a, self.also(after, runs))
            freed = freed or after != self.get(a)
        if (
            self.each_event
            or freed
            or len(writes) != 1
            or inst.reworkspace_C[c]
            or len(inst.rewrites_C[c]) != 1
        ):
            own = inst.reworkspace_C[c] + sum(inst.size_A[a] for a in inst.rewrites_C[c])
            self.bound(0, {run: own}, self.room)
        # Else all that is alive during the event is alive during the next one too.
