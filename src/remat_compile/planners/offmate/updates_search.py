"""The fastest schedule of a whole training step: a way for each update, over orders of another
planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from time import monotonic

from ...ir.diagnostics import Diagnostic
from ...ir.program import Budget
from ...ir.rewrites.updates import for_planners
from ...ir.schedule import Compute, Free, Schedule
from ...ir.semantics.simulate import Trace, simulate
from ...ir.wording import worded
from ..contract import Feasible, Infeasible, Planner, PlanResult, TimedOut
from ..instance import Instance, Order
from ..results import Task
from .updates_place import UpdateOrder, UpdatePlacement, Way

Ways = tuple[Way, ...]

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_OF_ACTIVATIONS = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2)
"""Of the bytes that are left beside what cannot be moved: what another planner may fill."""


def uniform(way: Way) -> Callable[[UpdateOrder], Ways]:
    """One way for all updates."""
    return lambda view: (way,) * len(view.updates)


@dataclass
class UpdatesTask:
    """A task, and the best schedule so far within the budget and the host's bytes."""

    task: Task
    base: Instance = field(init=False)
    best: tuple[Schedule, Trace] | None = None
    least: int | None = None
    host_bytes: int | None = None
    """The least on the host of a schedule that fits otherwise, where the host is too small."""

    def __post_init__(self) -> None:
        self.base = Instance.of(for_planners(self.task.program), "activation")
        self._known: dict[tuple[int, Ways, bool], int | None] = {}

    @property
    def late(self) -> bool:
        return monotonic() > self.task.deadline

    def orders(self, of: Planner) -> Iterator[UpdateOrder]:
        """The captured order, and those of another planner under several budgets of activations."""
        program = self.task.program
        capture = UpdateOrder(program, self.base, self.base.capture)
        yield capture
        most = min(self.task.limit_bytes - capture.fixed_bytes, max(capture.acts_bytes))
        seen = {tuple(capture.order)}
        for left, share in zip(range(len(_OF_ACTIVATIONS), 0, -1), _OF_ACTIVATIONS, strict=True):
            budget = Budget(max(1, int(share * most)), "activation")
            limit_s = self.task.left_s / (left + 2)
            result = of.plan(self.base.program, budget, time_limit_s=limit_s)
            if isinstance(result, Infeasible) and result.min_budget is not None:
                result = of.plan(self.base.program, result.min_budget, time_limit_s=limit_s)
            order = self._order_of(result)
            if order is None:
                return
            view = UpdateOrder(program, self.base, order)
            if tuple(view.order) not in seen:
                seen.add(tuple(view.order))
                yield view

    def _order_of(self, result: PlanResult) -> Order | None:
        """The order of a plan that only computes and frees."""
        schedule = getattr(result, "schedule", None)
        if schedule is None or not all(isinstance(s, Compute | Free) for s in schedule.steps):
            return None
        index = {name: c for c, name in enumerate(self.base.names_C)}
        return [index[step.cnode] for step in schedule.steps if isinstance(step, Compute)]

    def time_ns(self, view: UpdateOrder, ways: Ways, *, drop: bool) -> int | None:
        """The time of the schedule of these ways, None where it is above a limit. Takes it in where
        it is the fastest so far."""
        key = id(view), ways, drop
        if key not in self._known:
            self._known[key] = self._simulated(view, ways, drop=drop)
        return self._known[key]

    def _simulated(self, view: UpdateOrder, ways: Ways, *, drop: bool) -> int | None:
        task = self.task
        placement = UpdatePlacement(view, task.limit_bytes, ways, drop=drop)
        schedule = placement.schedule(task.planner)
        trace = simulate(task.program, schedule)
        host = task.program.target.host_bytes
        if self.least is None or trace.peak_bytes < self.least:
            self.least = trace.peak_bytes
        if trace.peak_bytes > task.limit_bytes:
            return None
        if host is not None and trace.host_peak_bytes > host:
            self.host_bytes = min(self.host_bytes or trace.host_peak_bytes, trace.host_peak_bytes)
            return None
        if self.best is None or trace.time_ns < self.best[1].time_ns:
            self.best = schedule, trace
        return trace.time_ns

    def search(self, view: UpdateOrder) -> None:
        """Updates on the host for the gradients that come first: they have the longest time to run.
        Behind them states or all of it on the host, and the others on the device; then single
        updates in another way, as long as that is faster."""
        count = len(view.updates)
        times: list[tuple[int, Ways, bool]] = []
        kinds: tuple[Way, ...] = ("states", "through")
        for host, away, kind, drop in product(_SHARES, _SHARES, kinds, (False, True)):
            if host + away > 1 or self.late:
                continue
            ways = _split(count, host, away, kind)
            if (time_ns := self.time_ns(view, ways, drop=drop)) is not None:
                times.append((time_ns, ways, drop))
        if not times:
            return
        best, ways, drop = min(times)
        step = max(1, count // 8)
        while step and not self.late:
            better = [
                (time_ns, other)
                for other in _neighbours(ways, step)
                if (time_ns := self.time_ns(view, other, drop=drop)) is not None
            ]
            if better and min(better)[0] < best:
                best, ways = min(better)
            else:
                step //= 2

    def answer(self) -> PlanResult:
        """The fastest schedule; else what the least would take."""
        if self.best is not None:
            return Feasible(self.best[0], self.best[1].time_ns, None)
        if self.late:
            return TimedOut(None, 0, None)
        task, floor = self.task, self.base.base_bytes
        host = task.program.target.host_bytes
        least = None if self.least is None else Budget(self.least)
        if self.host_bytes is not None:
            message = (
                f"{task.planner} found no plan with {host} bytes on the host; it would with "
                f"{self.host_bytes}"
            )
            hint = worded("give {host_budget} or more", host_budget=f"{self.host_bytes}B")
            why = Diagnostic("FB0475", message, hint=hint)
            return Infeasible(least, floor, why, short_of="host")
        found = "" if least is None else f"; the least it found is {least.bytes} bytes"
        message = f"{task.planner} found no plan under {task.limit_bytes} bytes{found}"
        return Infeasible(least, floor, Diagnostic("FB0407", message, hint="give more bytes"))


def _split(count: int, host: float, away: float, kind: Way) -> Ways:
    first, second = round(count * host), round(count * (host + away))
    ways: list[Way] = ["host"] * first
    ways += [kind] * (second - first)
    ways += ["device"] * (count - second)
    return tuple(ways)


def _neighbours(ways: Ways, step: int) -> Iterator[Ways]:
    """Where the way changes, so many updates more in either; and as many anywhere in another."""
    edges = [i for i in range(1, len(ways)) if ways[i] != ways[i - 1]]
    others: Sequence[Way] = ("device", "states", "through", "host")
    for edge in edges:
        for low, high, way in (
            (edge, edge + step, ways[edge - 1]),
            (edge - step, edge, ways[edge]),
        ):
            yield _changed(ways, max(0, low), high, way)
    for low in range(0, len(ways), step):
        for way in others:
            if any(w != way for w in ways[low : low + step]):
                yield _changed(ways, low, low + step, way)


def _changed(ways: Ways, low: int, high: int, way: Way) -> Ways:
    high = min(high, len(ways))
    return (*ways[:low], *[way] * (high - low), *ways[high:])
