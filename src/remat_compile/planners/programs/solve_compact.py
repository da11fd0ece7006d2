"""Solves the compact ILP for a program or a part of one: orders in, orders out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import floor, isfinite
from time import monotonic

from ..eviction.keep import keep_what_fits
from ..instance import Instance, Order
from ..solvers import MilpSolver
from ..solvers.milp import INFINITY, Milp, Vector
from .answer import Incumbent, OnOrder, ProgramAnswer, saved_bytes_of
from .compact import CompactModel, NotStated, compact_model
from .events import PossibleRun, all_events, order_of, useful_pairs


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
    most_checks: int | None = None,
) -> ProgramAnswer:
    """The fastest order under a peak budget and, where given, a bound on what is saved.

    The family: first executions as captured; between two of them each of `pairs`
    (`useful_pairs` by default) at most once, in the order of capture.

    `saved_bytes` bounds the bytes alive when the loss starts (`saved_bytes_of`). Both
    bounds count as the instance does, what the caller holds included. `start` is an order
    to begin from; only orders faster than `cutoff_ns` are looked for. `solver` lends a
    running process; its limit is wall clock, `most_checks` one of work (`MilpSolver.solve`).
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
        most_checks=most_checks,
    )


def solve_events(
    instance: Instance,
    events: Sequence[PossibleRun],
    limit_bytes: int,
    *,
    saved_bytes: int | None = None,
    time_limit_s: float,
    start: set[int] | None = None,
    cutoff_ns: int | None = None,
    solver: MilpSolver | None = None,
    on_order: OnOrder | None = None,
    most_checks: int | None = None,
) -> ProgramAnswer:
    """As `solve_compact` among any events; `start` names the optional ones that run. `unknown`
    where the program is too large to be stated, or the time too short for it."""
    deadline = monotonic() + time_limit_s
    incumbent = Incumbent(instance, limit_bytes, on_order)
    try:
        model = compact_model(instance, events, limit_bytes, saved_bytes, deadline)
    except NotStated:
        return incumbent.answer("unknown", instance.base_time_ns)
    search = _PointSearch(incumbent, list(events), saved_bytes, model)
    if not model.fits:
        return incumbent.answer("infeasible", model.fixed_ns)
    if search.offer(set()):
        return incumbent.answer("optimal", model.fixed_ns)
    milp = model.milp
    if cutoff_ns is not None:
        milp = _below(milp, (cutoff_ns - 1 - model.fixed_ns) / model.scale_ns)
    with nullcontext(solver) if solver is not None else MilpSolver() as running:
        solved = running.solve(
            milp,
            deadline - monotonic(),
            start=model.point(start) if start is not None else None,
            on_point=search.on_point,
            most_checks=most_checks,
        )
    if solved.point is not None:
        search.on_point(solved.point, solved.objective)
    bound = model.fixed_ns
    if isfinite(solved.bound):
        bound += max(0, floor(solved.bound * model.scale_ns - 1e-3))
    return incumbent.answer(solved.status, bound)


@dataclass
class _PointSearch:
    """Makes orders of a solver's points, and leaves out of each what the budget has room for."""

    incumbent: Incumbent
    events: list[PossibleRun]
    saved_bytes: int | None
    model: CompactModel

    def on_point(self, point: Vector, _: float) -> None:
        self.offer(self.model.chosen(point))

    def offer(self, chosen: set[int]) -> bool:
        """True if the order of these events is valid and in budget; the better one is kept."""
        inst, limit_bytes = self.incumbent.instance, self.incumbent.limit_bytes
        order = order_of(self.events, chosen)
        if not self._fits(order):
            return False
        shorter = keep_what_fits(inst, order, limit_bytes)
        self.incumbent.offer(shorter if self._fits(shorter) else order)
        return True

    def _fits(self, order: Order) -> bool:
        inst = self.incumbent.instance
        if not is_valid(inst, order) or inst.peak(order) > self.incumbent.limit_bytes:
            return False
        return self.saved_bytes is None or saved_bytes_of(inst, order) <= self.saved_bytes


def is_valid(instance: Instance, order: Order) -> bool:
    """True if each read follows the write of its storage and each cNode follows its
    predecessors."""
    made: set[int] = set()
    seen: set[int] = set()
    for c in order:
        again = c in seen
        reads = instance.rereads_C[c] if again else instance.reads_C[c]
        if not made.issuperset(reads) or not (again or seen.issuperset(instance.after_C[c])):
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


def _matching(events: Sequence[PossibleRun], order: Order) -> set[int]:
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
    matching: set[int] = set()
    stage: list[int] = []
    for i, event in enumerate(events):
        if event.optional:
            stage.append(i)
        elif event.first:
            matching.update(j for j in stage if (event.cnode, events[j].cnode) in stage_of)
            stage = []
    return matching
