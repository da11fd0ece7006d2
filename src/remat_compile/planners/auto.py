"""`auto`: a portfolio of planners within the time limit, and the best plan of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import ClassVar, assert_never

from ..ir.analysis.liveness import lower_bound_bytes
from ..ir.analysis.order import capture_order
from ..ir.program import Budget, Program
from .bounds.time_bounds import TimeBounds
from .contract import Planner, PlanResult, Progress, makes_copies
from .eviction.dtr import Dtr
from .isolation.crew import Crew, Ended, is_foreign, is_portable
from .isolation.endings import Answered, Failed, NoResult, Overdue, PlannerRefused, Unloadable
from .polish.polish import Polish
from .portfolio.members import (
    LARGE,
    SMALL,
    PortfolioMember,
    copying_members,
    members,
    polisher,
    quick_copying_members,
    quick_members,
    reordered_members,
)
from .portfolio.race import Accept, PlanRace
from .registry import format_planner
from .results import check_budget, kind_of
from .workers.addresses import given_workers, where_it_runs, wrong_address
from .workers.pool import engine_at

LEAST_S = 1.5
"""A search may take so long, however little is to be gained: a planner's process has to start."""
BOUND_S = 7.0
"""A bound may take its share of so long, however little is to be gained: it may end the search."""
MOST_IDLE_POLISHES = 4
"""The search ends after this many polishes in a row without a better plan."""
FALLBACK_S = 10.0
"""The fallback may take so long, whatever the time limit."""
GRACE_S = 2.0
"""Seconds past its limit after which a member in a process is killed."""
QUICK_GRACE_S = 10.0
"""Seconds past its limit after which a quick member is given up. All of them keep theirs,
unless the machine is very busy."""


@dataclass(frozen=True)
class Auto:
    """Runs `planners` (none given: those that suit the graph, plug-ins included) and takes
    the fastest plan that is proven. Quick ones answer first; slow ones follow in two processes,
    and by `workers` of a cluster (dask://HOST:PORT) where they can; then the best plan is
    polished, until the time limit, or until it is within 0.5 % of the proven bound, or until the
    search took as long as `horizon` steps could still gain by it. Ctrl-C takes the best so far. The
    schedule carries the text of the planner that won. On a target with a link those run too that
    copy to the host, unless `offload` is off."""

    name: ClassVar[str] = "auto"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "ours: a portfolio"
    planners: tuple[Planner, ...] = ()
    offload: bool = True
    horizon: int = 1000
    workers: str | None = where_it_runs()

    @staticmethod
    def check_options(horizon: int, workers: str | None, **_: object) -> Iterator[tuple[str, str]]:
        """Yields the options that are wrong, each with the rule it breaks."""
        if horizon < 1:
            yield "horizon", "must be at least 1"
        yield from wrong_address(workers)

    @property
    def copies(self) -> bool:
        """True if its schedules may copy to the host, on a target with a link."""
        return self.offload

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
        accept: Accept | None = None,
        keep_on_interrupt: bool = True,
        bounds: TimeBounds | None = None,
    ) -> PlanResult:
        """As every planner; `accept` (a verifier) has the last word on each schedule, and
        `bounds` are those that the caller knows of the program.

        Ctrl-C ends the search, and the best plan so far is the answer, unless there is
        none or `keep_on_interrupt` is off.
        """
        check_budget(budget)
        if self.workers is not None:
            engine_at(self.workers).shutdown()  # it is there
        report = progress or (lambda line: None)
        asked = not self.planners or any(map(makes_copies, self.planners))
        copies = self.offload and program.target.has_link and asked
        race = PlanRace(program, budget, _base_ns(program), report, copies=copies)
        run = _Portfolio(
            race,
            bounds or TimeBounds(program),
            monotonic() + time_limit_s,
            report,
            self.horizon,
            may_polish=not self.planners,
        )
        run.enter(self.planners, self.workers)
        try:
            run.run_quick()
            run.look_at_order()
            run.run_slow()
        except KeyboardInterrupt:
            if race.best is None or not keep_on_interrupt:
                raise
            report(f"auto: stopped early, {race.standing()}")
        return race.result(accept)


def _base_ns(program: Program) -> int:
    """The time with nothing recomputed."""
    graph = program.graph
    return sum(graph.cnode[name].time_ns_at(1) for name in capture_order(graph))


class _Portfolio:
    """One call of `auto`: what is quick, one after the other, then the rest in processes."""

    def __init__(
        self,
        race: PlanRace,
        bounds: TimeBounds,
        deadline: float,
        report: Progress,
        horizon: int,
        *,
        may_polish: bool,
    ):
        self.race = race
        self.bounds = bounds
        self.began = monotonic()
        self.limit = deadline
        self.horizon = horizon
        self.report = report
        self.may_polish = may_polish
        self.quick: deque[Planner] = deque()
        self.waiting: deque[PortfolioMember] = deque()
        self.polished = 0
        self.idle_polishes = 0
        self.tried: set[int] = set()
        self.asked_bounds: set[bool] = set()

    @property
    def deadline(self) -> float:
        """The end of the search: the time limit, or sooner where what is left to gain is less."""
        gain_ns = self.race.to_gain_ns
        if gain_ns is None:
            return self.limit
        return min(self.limit, self.began + max(LEAST_S, self.horizon * gain_ns / 1e9))

    @property
    def left_s(self) -> float:
        return self.deadline - monotonic()

    def enter(self, chosen: tuple[Planner, ...], workers: str | None) -> None:
        """Decides who runs where: of this package's planners on a small graph, the quick
        ones on a thread, and all others in processes, which may give work to `workers`."""
        self._enter(chosen)
        self.waiting = deque(
            replace(m, planner=given_workers(m.planner, workers)) for m in self.waiting
        )

    def _enter(self, chosen: tuple[Planner, ...]) -> None:
        size = len(self.race.program.graph.cnodes)
        if chosen:
            for planner in chosen:
                if is_portable(planner):
                    self.waiting.append(PortfolioMember(planner, 1 / len(chosen)))
                else:
                    self.quick.append(planner)
            return
        copies = self.race.copies
        self.quick += quick_members(size)
        if copies:
            self.quick += quick_copying_members(size)
        budget = self.race.budget
        if budget is not None:
            floor, where = lower_bound_bytes(self.race.program, kind_of(budget), copies=copies)
            if floor > budget.bytes:
                self.report(f"auto: no plan can exist, any needs {floor} bytes at {where}")
                return
            if copies:
                self.waiting += copying_members(size)
        self.waiting += members(size, self.report, copies=copies)

    def run_quick(self) -> None:
        """The quick members, one after the other; with no time left, the fallback."""
        while self.quick and not self.race.settled and self.left_s > 0:
            planner = self.quick.popleft()
            share = self.left_s / (2 if self.quick or self.waiting else 1)
            self._run_quick(planner, share)
        if self.left_s <= 0 and self.race.best is None and self.may_polish:
            self._run_quick(Dtr(rounds=0), FALLBACK_S)
            self.waiting.clear()

    def _run_quick(self, planner: Planner, limit_s: float) -> None:
        with Crew(self.race.program, self.race.budget, self.report) as crew:
            name = format_planner(planner)
            crew.start(planner, name, limit_s, limit_s + QUICK_GRACE_S, in_process=False)
            for ended in crew.wait():
                self._take(ended)

    def look_at_order(self) -> None:
        """Where the best plan runs computations in another order than that of capture, that
        order is left to those who can."""
        race, size = self.race, len(self.race.program.graph.cnodes)
        self._raise_bounds()
        best = race.best
        if best is None or best.ordered or race.settled or not self.may_polish:
            return
        if SMALL < size <= LARGE and race.budget is not None:
            others = [m for m in self.waiting if not race.left_order or is_foreign(m.planner)]
            self.waiting = deque([*reordered_members(size), *others])

    def _raise_bounds(self) -> None:
        """Asks once what no plan in the order of the best one can beat: the race may end there."""
        race, budget = self.race, self.race.budget
        if budget is None or len(race.program.graph.cnodes) > LARGE:
            return
        for any_order in (False, True):
            best = race.best
            if best is None or race.settled or any_order in self.asked_bounds:
                continue
            if any_order and best.ordered:
                continue
            self.asked_bounds.add(any_order)
            left_s = max(self.left_s, min(BOUND_S, self.limit - monotonic()))
            bound_ns = self.bounds.lower_ns(budget, left_s, any_order=any_order, copies=race.copies)
            race.raise_bound("the relaxed program", bound_ns, any_order=any_order)

    def run_slow(self) -> None:
        """The slow members, and `polish` while there is time and use in it."""
        if self.race.settled or not (self.waiting or self.may_polish):
            return
        with Crew(self.race.program, self.race.budget, self.report) as crew:
            while not self.race.settled and self.left_s > 0:
                while crew.has_room and self._start_next(crew):
                    pass
                if crew.is_idle:
                    return
                left, names = f"at most {self.left_s:.0f} s more", " and ".join(crew.names)
                self.report(f"auto: waiting for {names}, {left}; {self.race.standing()}")
                for ended in crew.wait(self.deadline):
                    self._take(ended)
                self._raise_bounds()
            self.race.late = self.race.late or not self.race.settled

    def _start_next(self, crew: Crew) -> bool:
        """Starts a member where one waits, or else a polish of the best plan."""
        if self.left_s < 1.0:
            return False
        # Starting a process, and handing over its answer, takes from the same limit.
        whole = max(0.5, 0.96 * self.left_s - 1.2)
        if self.waiting:
            member = self.waiting.popleft()
            self._start(crew, member.planner, format_planner(member.planner), whole * member.share)
            return True
        return self._polish(crew, whole)

    def _start(self, crew: Crew, planner: Planner, name: str, limit_s: float) -> None:
        crew.start(planner, name, limit_s, limit_s + GRACE_S, in_process=True)
        self.report(f"auto: {name}, for {limit_s:.0f} s")

    def _polish(self, crew: Crew, whole_s: float) -> bool:
        """Starts a polish for a part of the time left, so that the next one begins from the
        best of all; every other one begins from the runner-up, which may lead further."""
        entries = self.race.entries
        if not self.may_polish or not entries or self.idle_polishes >= MOST_IDLE_POLISHES:
            return False
        start = entries[0]
        self.tried.add(start.time_ns)
        fresh = (e for e in entries if e.time_ns not in self.tried)
        if self.polished % 2 and (other := next(fresh, None)) is not None:
            start = other
            self.tried.add(start.time_ns)
        planner = polisher(start.schedule, self.polished, copies=self.race.copies)
        self.polished += 1
        name = start.planner if start.polished else f"polish{{of={start.planner}}}"
        self._start(crew, planner, name, min(whole_s, max(4.0, whole_s / 3)))
        return True

    def _take(self, ended: Ended) -> None:
        match ended.ending:
            case Answered(result):
                # With copies in the race the bounds of those that know of none do not hold.
                trusted = not is_foreign(ended.planner) and not self.race.copies
                polished = isinstance(ended.planner, Polish)
                leads = self.race.take(ended.name, result, trusted=trusted, polished=polished)
                if polished:
                    self.idle_polishes = 0 if leads else self.idle_polishes + 1
            case PlannerRefused(diagnostics):
                self.report(f"auto: {ended.name} left out: {diagnostics[0].message}")
            case Failed(what) | NoResult(what) | Unloadable(what):
                self.report(f"auto: {ended.name} failed and is left out: {what}")
            case Overdue():
                self.race.late = True
                self.report(f"auto: {ended.name} did not come back and was ended")
            case _:
                assert_never(ended.ending)
