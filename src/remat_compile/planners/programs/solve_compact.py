"""Solves the compact ILP for a program or a part of one: orders in, orders out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import floor, isfinite
from time import monotonic

from ..eviction.keep import keep_what_fits
from ..instance import Instance, Order
from ..solvers import MilpSolver
from ..solvers.milp import INFINITY, Milp, Status, Vector
from .compact import CompactModel, compact_model
from .events import Event, all_events, order_of, useful_pairs

__all__ = ["CompactAnswer", "OnOrder", "saved_bytes_of", "solve_compact", "solve_events"]

OnOrder = Callable[[Order, int], None]
"""Takes each better order as it is found, with its time in ns."""


@dataclass(frozen=True)
class CompactAnswer:
    """The best order and a lower bound on the time of every order of the family.

    `optimal`: both agree (to 1e-6, the solver's tolerance). `feasible`: the time ended
    the search with an order. `infeasible`: the family has none (below the cutoff).
    `unknown`: the time ended the search without one. All times in ns.
    """

    status: Status
    order: Order | None
    time_ns: int
    bound_ns: int


def saved_bytes_of(instance: Instance, order: Order) -> int:
    """Bytes alive when the loss starts, as the instance counts them, what the caller
    holds included: what `saved_bytes` bounds."""
    at = order.index(instance.loss)
    own = instance.workspace_C[instance.loss]
    own += sum(instance.size_A[a] for a in instance.writes_C[instance.loss])
    return instance.base_bytes + instance.profile(order)[at] - own


def solve_compact(
    instance: Instance,
    limit_bytes: int,
    *,
    saved_bytes: int | None = None,
    time_limit_s: float,
    pairs: list[list[int]] | None = None,
    start: Order | None = None,
    cutoff_ns: int | None = None,
    solver: MilpSolver | None = None,
    on_order: OnOrder | None = None,
) -> CompactAnswer:
    """The fastest order under a peak budget and, where given, a bound on what is saved.

    The family: first executions as captured; between two of them each of `pairs`
    (`useful_pairs` by default) at most once, in the order of capture.

    `saved_bytes` bounds the bytes alive when the loss starts (`saved_bytes_of`). Both
    bounds count as the instance does, what the caller holds included. `start` is an order
    to begin from; only orders faster than `cutoff_ns` are looked for. `solver` lends a
    running process; its limit is wall clock.
    """
    events = all_events(useful_pairs(instance) if pairs is None else pairs)
    return solve_events(
        instance,
        events,
        limit_bytes,
        saved_bytes=saved_bytes,
        time_limit_s=time_limit_s,
        start=None if start is None else _matching(events, start),
        cutoff_ns=cutoff_ns,
        solver=solver,
        on_order=on_order,
    )


def solve_events(
    instance: Instance,
    events: Sequence[Event],
    limit_bytes: int,
    *,
    saved_bytes: int | None = None,
    time_limit_s: float,
    start: set[int] | None = None,
    cutoff_ns: int | None = None,
    solver: MilpSolver | None = None,
    on_order: OnOrder | None = None,
) -> CompactAnswer:
    """As `solve_compact` among any events; `start` names the optional ones that run."""
    deadline = monotonic() + time_limit_s
    model = compact_model(instance, events, limit_bytes, saved_bytes)
    search = _Search(instance, list(events), limit_bytes, saved_bytes, model, on_order)
    if not model.fits:
        return CompactAnswer("infeasible", None, 0, model.fixed_ns)
    if search.offer(set()):
        return search.answer("optimal", model.fixed_ns)
    milp = model.milp
    if cutoff_ns is not None:
        milp = _below(milp, (cutoff_ns - 1 - model.fixed_ns) / model.scale_ns)
    with nullcontext(solver) if solver is not None else MilpSolver() as running:
        found = running.solve(
            milp,
            deadline - monotonic(),
            start=model.point(start) if start is not None else None,
            on_point=search.on_point,
        )
    if found.point is not None:
        search.on_point(found.point, found.objective)
    bound = model.fixed_ns
    if isfinite(found.bound):
        bound += max(0, floor(found.bound * model.scale_ns - 1e-3))
    return search.answer(found.status, bound)


@dataclass
class _Search:
    instance: Instance
    events: list[Event]
    limit_bytes: int
    saved_bytes: int | None
    model: CompactModel
    on_order: OnOrder | None
    best: Order | None = None
    best_ns: int = 0

    def on_point(self, point: Vector, _: float) -> None:
        self.offer(self.model.chosen(point))

    def offer(self, chosen: set[int]) -> bool:
        """Takes the order of these events if it is valid, in budget, and better."""
        inst = self.instance
        order = order_of(self.events, chosen)
        if not self._fits(order):
            return False
        kept = keep_what_fits(inst, order, self.limit_bytes)
        if self._fits(kept):
            order = kept
        time_ns = inst.time_ns(order)
        if self.best is None or time_ns < self.best_ns:
            self.best, self.best_ns = order, time_ns
            if self.on_order is not None:
                self.on_order(order, time_ns)
        return True

    def _fits(self, order: Order) -> bool:
        inst = self.instance
        if not _valid(inst, order) or inst.peak(order) > self.limit_bytes:
            return False
        return self.saved_bytes is None or saved_bytes_of(inst, order) <= self.saved_bytes

    def answer(self, status: Status, bound_ns: int) -> CompactAnswer:
        if self.best is None:
            known: Status = "infeasible" if status == "infeasible" else "unknown"
            return CompactAnswer(known, None, 0, bound_ns)
        if status == "optimal":
            return CompactAnswer("optimal", self.best, self.best_ns, self.best_ns)
        return CompactAnswer("feasible", self.best, self.best_ns, min(bound_ns, self.best_ns))


def _valid(instance: Instance, order: Order) -> bool:
    """Whether every read has been made since the storage was last given up."""
    made: set[int] = set()
    seen: set[int] = set()
    for c in order:
        again = c in seen
        reads = instance.rereads_C[c] if again else instance.reads_C[c]
        if not made.issuperset(reads):
            return False
        if instance.ends_C[c] >= 0:
            made.discard(instance.ends_C[c])
        made.update(instance.rewrites_C[c] if again else instance.writes_C[c])
        seen.add(c)
    return True


def _below(milp: Milp, objective: float) -> Milp:
    """With a row that asks for an objective of at most this."""
    import numpy as np

    costly = np.nonzero(milp.cost)[0].astype(np.int32)
    return replace(
        milp,
        starts=np.append(milp.starts, np.int32(len(milp.index) + len(costly))),
        index=np.concatenate([milp.index, costly]),
        value=np.concatenate([milp.value, milp.cost[costly]]),
        row_lower=np.append(milp.row_lower, -INFINITY),
        row_upper=np.append(milp.row_upper, objective),
    )


def _matching(events: Sequence[Event], order: Order) -> set[int]:
    """The optional events that `order` runs in the same stages."""
    stage_of: dict[tuple[int, int], int] = {}
    seen: set[int] = set()
    waiting: list[int] = []
    for c in order:
        if c in seen:
            waiting.append(c)
            continue
        seen.add(c)
        for k in waiting:
            stage_of[c, k] = 1
        waiting = []
    found: set[int] = set()
    stage: list[int] = []
    for i, event in enumerate(events):
        if event.optional:
            stage.append(i)
        elif event.first:
            found.update(j for j in stage if (event.cnode, events[j].cnode) in stage_of)
            stage = []
    return found
