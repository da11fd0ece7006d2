"""`auto`: a portfolio of planners within the time limit, and the best plan of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar, assert_never

from ..ir.analysis.liveness import lower_bound_bytes
from ..ir.analysis.order import capture_order
from ..ir.diagnostics import FBError
from ..ir.program import Budget, Program
from .bounds.relaxation import lower_bound_ns
from .contract import Planner, PlanResult, Progress
from .dtr import Dtr
from .instance import Instance
from .isolation.process import (
    Answered,
    Failed,
    Refused,
    Strange,
    Unloadable,
    is_foreign,
    is_portable,
)
from .portfolio.crew import Crew, Ended
from .portfolio.members import (
    LARGE,
    SMALL,
    Member,
    members,
    polisher,
    quick_members,
    reordered_members,
)
from .portfolio.race import Accept, Race
from .registry import format_planner
from .results import check_budget, kind_of, without_relaxation

__all__ = ["Auto"]

DULL = 4
"""So many polishes in a row that do not lead end the search."""
BOUND_S = 5.0
"""The bound of single moments may take so long."""
FALLBACK_S = 10.0
"""The fallback may take so long, whatever the time limit."""


@dataclass(frozen=True)
class Auto:
    """Runs `planners` (none given: those that suit the graph, plug-ins included) and takes
    the fastest plan that is proven. Quick ones answer first; slow ones follow in two
    processes; then the best plan is polished, until the time limit, or until it is within
    0.1 % of the proven bound. Ctrl-C takes the best so far. The schedule carries the text
    of the planner that won."""

    name: ClassVar[str] = "auto"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "ours: a portfolio"
    planners: tuple[Planner, ...] = ()

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
        accept: Accept | None = None,
        keep_on_interrupt: bool = True,
    ) -> PlanResult:
        """As every planner; `accept` (a verifier) has the last word on each schedule.

        Ctrl-C ends the search, and the best plan so far is the answer, unless there is
        none or `keep_on_interrupt` is off.
        """
        check_budget(budget)
        tell = progress or (lambda line: None)
        race = Race(program, budget, _base_ns(program), tell)
        run = _Run(race, monotonic() + time_limit_s, tell, may_polish=not self.planners)
        run.enter(self.planners)
        try:
            with without_relaxation():
                run.run_here()
            run.look_at_order()
            run.run_crew()
        except KeyboardInterrupt:
            if race.best is None or not keep_on_interrupt:
                raise
            tell(f"auto: stopped early, {race.standing()}")
        return race.result(accept)


def _base_ns(program: Program) -> int:
    """The time with nothing recomputed."""
    graph = program.graph
    return sum(graph.cnode[name].time_ns_at(1) for name in capture_order(graph))


class _Run:
    """One call of `auto`: what runs in this process, then what runs in others."""

    def __init__(self, race: Race, deadline: float, tell: Progress, *, may_polish: bool):
        self.race = race
        self.deadline = deadline
        self.tell = tell
        self.may_polish = may_polish
        self.here: deque[Planner] = deque()
        self.waiting: deque[Member] = deque()
        self.polished = 0
        self.dull = 0
        self.tried: set[int] = set()

    @property
    def left_s(self) -> float:
        return self.deadline - monotonic()

    def enter(self, chosen: tuple[Planner, ...]) -> None:
        """Decides who runs where: of this package's planners on a small graph, the quick
        ones here, and all others in processes."""
        size = len(self.race.program.graph.cnodes)
        if chosen:
            for planner in chosen:
                if is_portable(planner):
                    self.waiting.append(Member(planner, 1 / len(chosen)))
                else:
                    self.here.append(planner)
            return
        self.here += quick_members(size)
        budget = self.race.budget
        if budget is not None:
            floor, where = lower_bound_bytes(self.race.program, kind_of(budget))
            if floor > budget.bytes:
                self.tell(f"auto: no plan can exist, {where} alone needs {floor} bytes")
                return
        self.waiting += members(size, self.tell)

    def run_here(self) -> None:
        """The quick members, one after the other; with no time left, the fallback."""
        while self.here and not self.race.settled and self.left_s > 0:
            planner = self.here.popleft()
            share = self.left_s / (2 if self.here or self.waiting else 1)
            name = format_planner(planner)
            try:
                result = planner.plan(
                    self.race.program, self.race.budget, time_limit_s=share, progress=self.tell
                )
            except FBError as error:
                self.tell(f"auto: {name} left out: {error.diagnostics[0].message}")
            except Exception as error:  # a plug-in may raise anything at all
                self.tell(f"auto: {name} failed: {type(error).__name__}: {error}")
            else:
                self.race.take(name, result, trusted=not is_foreign(planner))
        if self.left_s <= 0 and self.race.best is None and self.may_polish:
            self._fall_back()

    def _fall_back(self) -> None:
        fallback = Dtr(rounds=0)
        result = fallback.plan(self.race.program, self.race.budget, time_limit_s=FALLBACK_S)
        self.race.take(format_planner(fallback), result)
        self.waiting.clear()

    def look_at_order(self) -> None:
        """On a larger graph, what no plan in the order of capture can beat: the race may end
        there, or leave that order to those who can."""
        race, size = self.race, len(self.race.program.graph.cnodes)
        left = min(BOUND_S, self.left_s / 10)
        if (
            not SMALL < size <= LARGE
            or race.budget is None
            or race.best is None
            or race.settled
            or left < 0.5
        ):
            return
        instance = Instance.of(race.program, kind_of(race.budget))
        bound_ns = lower_bound_ns(instance, race.budget.bytes, left, SMALL)
        race.raise_bound("the fullest moment", bound_ns)
        if race.best.ordered or not self.may_polish:
            return
        others = [m for m in self.waiting if not race.left_order or is_foreign(m.planner)]
        self.waiting = deque([*reordered_members(size, self.tell), *others])

    def run_crew(self) -> None:
        """The slow members, and `polish` while there is time and use in it."""
        if self.race.settled or not (self.waiting or self.may_polish):
            return
        with Crew(self.race.program, self.race.budget, self.tell) as crew:
            while not self.race.settled and self.left_s > 0:
                while crew.has_room and self._start_next(crew):
                    pass
                if crew.is_idle:
                    return
                for ended in crew.wait(self.deadline):
                    self._take(ended)
            self.race.late = self.race.late or not self.race.settled

    def _start_next(self, crew: Crew) -> bool:
        """Starts a member where one waits, or else a polish of the best plan."""
        if self.left_s < 1.0:
            return False
        # Starting a process, and handing over its answer, takes from the same limit.
        whole = max(0.5, 0.96 * self.left_s - 1.2)
        if self.waiting:
            member = self.waiting.popleft()
            crew.start(member.planner, format_planner(member.planner), whole * member.share)
            return True
        return self._polish(crew, whole)

    def _polish(self, crew: Crew, whole_s: float) -> bool:
        """Starts a polish for a part of the time left, so that the next one begins from the
        best of all; every other one begins from the runner-up, which may lead further."""
        entries = self.race.entries
        if not self.may_polish or not entries or self.dull >= DULL:
            return False
        start = entries[0]
        self.tried.add(start.time_ns)
        fresh = (e for e in entries if e.time_ns not in self.tried)
        if self.polished % 2 and (other := next(fresh, None)) is not None:
            start = other
            self.tried.add(start.time_ns)
        planner = polisher(start.schedule, self.polished)
        if planner is None:
            return False
        self.polished += 1
        name = start.planner
        name = name if name.startswith("polish{") else f"polish{{of={name}}}"
        crew.start(planner, name, min(whole_s, max(4.0, whole_s / 3)))
        return True

    def _take(self, ended: Ended) -> None:
        match ended.ending:
            case Answered(result):
                trusted = not is_foreign(ended.planner)
                leads = self.race.take(ended.name, result, trusted=trusted)
                if ended.planner.name == "polish":
                    self.dull = 0 if leads else self.dull + 1
            case Refused(diagnostics):
                self.tell(f"auto: {ended.name} left out: {diagnostics[0].message}")
            case Failed(what) | Strange(what) | Unloadable(what):
                self.tell(f"auto: {ended.name} failed and is left out: {what}")
            case None:
                self.race.late = True
                self.tell(f"auto: {ended.name} did not come back and was ended")
            case _:
                assert_never(ended.ending)
