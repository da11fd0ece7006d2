"""The fastest schedule of a whole training step: a way for each update, over orders of another
planner."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
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
from ..solvers import MilpSolver
from .blocks.instance import without_update_times
from .updates_bound import least_time_ns
from .updates_place import WAYS, UpdateOrder, UpdatePlacement, Way
from .updates_program import Options, UpdatesProgram

Ways = tuple[Way, ...]

_BOUND, _PROGRAM, _CLIMBED = 0.1, 0.5, 0.9
"""Shares of the time: for the bound, until the O-ILP and what is found from there end."""
_BLOCKS, _LONG_S = 20, 300.0
"""At the most so many blocks, twice as many where there is so much time."""
_WORSE = 0.01
"""By so much of the time may a change be worse at first, and at the end by nothing."""
_IDLE = 300
"""Changes in a row that are not faster: then a search ends."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEANER: dict[Way, Way] = {
    "device": "states",
    "states": "through-dropped",
    "through": "through-dropped",
    "host": "host-dropped",
}
_OF_ACTIVATIONS = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2)
"""Shares of the bytes that are left beside what cannot be moved, for another planner to fill."""


@dataclass
class UpdatesTask:
    """A task, and the best schedule so far within the budget and the host's bytes."""

    task: Task
    base: Instance = field(init=False)
    best: tuple[Schedule, Trace] | None = None
    bound_ns: int | None = None
    least: int | None = None
    host_bytes: int | None = None
    """The least on the host of a schedule that fits otherwise, where the host is too small."""

    def __post_init__(self) -> None:
        self.base = Instance.of(for_planners(self.task.program), "activation")
        self.limit_s = self.task.left_s
        self._known: dict[tuple[int, Ways], int | None] = {}
        self._views: list[UpdateOrder] = []

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

    def time_ns(self, view: UpdateOrder, ways: Ways) -> int | None:
        """The time of the schedule of these ways, None where it is above a limit. Takes it in where
        it is the fastest so far."""
        key = id(view), ways
        if key not in self._known:
            self._views.append(view)  # an id is of what exists
            placement = UpdatePlacement(view, self.task.limit_bytes, ways)
            self._known[key] = self._simulated(placement)
        return self._known[key]

    def _simulated(self, placement: UpdatePlacement) -> int | None:
        task = self.task
        if self.least is not None and not placement.fits:
            return None
        schedule = placement.schedule(task.planner)
        return self._take(schedule, simulate(task.program, schedule))

    def _take(self, schedule: Schedule, trace: Trace) -> int | None:
        task, host = self.task, self.task.program.target.host_bytes
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

    def first_fits(self, views: Iterable[UpdateOrder], *ways: Way) -> None:
        """Each of these ways for all updates, in the first order that leaves room for it."""
        left = ways
        for view in views:
            left = tuple(w for w in left if self.time_ns(view, (w,) * len(view.updates)) is None)
            if not left or self.late:
                return

    def note_least(self, view: UpdateOrder) -> None:
        """The bytes of each way for all updates, whether it fits or not."""
        for way in WAYS:
            placement = UpdatePlacement(view, self.task.limit_bytes, (way,) * len(view.updates))
            self.take(placement.schedule(self.task.planner))

    def take(self, schedule: Schedule) -> None:
        """Takes in a schedule, if it is within all limits and the fastest so far."""
        trace = simulate(self.task.program, schedule)
        self._take(replace(schedule, planner=self.task.planner), trace)

    def solve(self, solver: MilpSolver) -> None:
        """A lower bound; and the choices of the O-ILP, with what is found from there."""
        task, began = self.task, monotonic()
        left_s, limit = task.left_s, task.limit_bytes
        capture = UpdateOrder(task.program, self.base, self.base.capture)
        timeless = Instance.of(without_update_times(task.program), "activation")
        self.bound_ns = least_time_ns(capture, timeless, limit, solver, _BOUND * left_s)
        blocks = _BLOCKS if left_s < _LONG_S else 2 * _BLOCKS
        program = UpdatesProgram(task.program, self.base, limit, blocks)
        for options, ways in program.choices(solver, began + _PROGRAM * left_s):
            ways = self._fitting(program.view(options), ways)
            self.climb(ways, options, program.view, began + _CLIMBED * left_s)

    def _fitting(self, view: UpdateOrder, ways: Ways) -> Ways:
        """These ways, or with less on the device for as few updates as fit then, the first ones
        first: at first states go, then parameters. As they are where that is not enough."""
        count, limit = len(ways), self.task.limit_bytes

        def leaner(n: int) -> Ways:
            away = [_LEANER.get(w, w) if i < n else w for i, w in enumerate(ways)]
            return tuple(_LEANER.get(w, w) if i < n - count else w for i, w in enumerate(away))

        def fits(n: int) -> bool:
            return UpdatePlacement(view, limit, leaner(n)).fits

        least = bisect_left(range(2 * count + 1), 1, key=fits)
        return leaner(least) if least <= 2 * count else ways

    def search(self, view: UpdateOrder) -> None:
        """Updates on the host for the gradients that come first: they have the longest time to run.
        Behind them states or all of it on the host, and the others on the device; then single
        updates in another way."""
        count = len(view.updates)
        starts = [
            _split(count, host, away, kinds)
            for host, away in product(_SHARES, _SHARES)
            if host + away <= 1
            for kinds in _KINDS
        ]
        fitting: list[tuple[int, Ways]] = []
        for ways in dict.fromkeys(starts):
            takes = None if self.late else self.time_ns(view, ways)
            if takes is not None:
                fitting.append((takes, ways))
        if fitting:
            _, ways = min(fitting)
            self.climb(ways, (), lambda _: view, self.task.deadline)

    def climb(
        self, ways: Ways, options: Options, view_of: Callable[[Options], UpdateOrder], until: float
    ) -> None:
        """Other ways of some updates and options of some blocks, as long as that is faster."""
        rng, idle, began = random.Random(0), 0, monotonic()
        now = least = self.time_ns(view_of(options), ways)
        while idle < _IDLE + 4 * len(ways) and (left := until - monotonic()) > 0:
            other = _moved(ways, options, rng)
            takes = self.time_ns(view_of(other[1]), other[0])
            idle += 1
            worse = _WORSE * left / (until - began)
            if takes is not None and (now is None or least is None or takes < now + worse * least):
                now, (ways, options) = takes, other
                if least is None or takes < least:
                    least, idle = takes, 0

    def answer(self) -> PlanResult:
        """The fastest schedule; else what the least would take."""
        if self.best is not None:
            return Feasible(self.best[0], self.best[1].time_ns, self.bound_ns)
        if self.late:
            return TimedOut(None, 0, self.bound_ns)
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


_KINDS: tuple[tuple[Way, Way], ...] = (
    ("host", "states"),
    ("host-dropped", "states"),
    ("host", "through"),
    ("host-dropped", "through-dropped"),
)
"""The storages that go to the host for their update, and of the rest those away in between."""


def _split(count: int, host: float, away: float, kinds: tuple[Way, Way]) -> Ways:
    first, second = round(count * host), round(count * (host + away))
    ways: list[Way] = [kinds[0]] * first
    ways += [kinds[1]] * (second - first)
    ways += ["device"] * (count - second)
    return tuple(ways)


def _moved(ways: Ways, options: Options, rng: random.Random) -> tuple[Ways, Options]:
    """One change: as many updates as chance says go another way, or change places with as many
    others; or some blocks in a row run a little less or more again."""
    count = len(ways)
    length = rng.choice([n for n in (1, 1, 2, 4, 8, count // 8) if 0 < n <= count])
    low, high = (rng.randrange(count - length + 1) for _ in range(2))
    kind = rng.randrange(3 if options else 2)
    new = list(ways)
    if kind == 0:
        new[low : low + length] = [rng.choice(WAYS)] * length
    elif kind == 1:
        new[low : low + length] = ways[high : high + length]
        new[high : high + length] = ways[low : low + length]
    else:
        length = rng.choice((1, 2, 4))
        low, change = rng.randrange(len(options)), rng.choice((-1, 1))
        run = range(low, low + length)
        options = tuple(max(0, k + change) if i in run else k for i, k in enumerate(options))
    return tuple(new), options
