"""`auto`: every planner within the time limit, and the best plan of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar

from ..ir.diagnostics import FBError
from ..ir.program import Budget, Program
from ..ir.schedule import Schedule
from ..ir.simulate import simulate
from ._results import check_budget, peak_of
from .contract import (
    Feasible,
    Infeasible,
    Optimal,
    Planner,
    PlanResult,
    Progress,
    TimedOut,
)
from .registry import available, format_planner

__all__ = ["Auto"]

Accept = Callable[[Schedule], bool]

_FIRST = ("store-all", "chen", "periodic", "dtr")
"""The order in which planners run; plug-ins follow."""


@dataclass(frozen=True)
class Auto:
    """Runs `planners` (none given: every registered one) and takes the fastest plan that
    simulates under the budget. The schedule carries the text of the planner that won."""

    name: ClassVar[str] = "auto"
    planners: tuple[Planner, ...] = ()

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
        accept: Accept | None = None,
    ) -> PlanResult:
        """As every planner; `accept` (a verifier) has the last word on each schedule."""
        check_budget(budget)
        deadline = monotonic() + time_limit_s
        tell = progress or (lambda line: None)
        race = _Race(program, budget, accept, tell)
        entrants = list(self._entrants(tell))
        for at, planner in enumerate(entrants):
            left = deadline - monotonic()
            if race.settled or left <= 0:
                race.late = race.late or not race.settled
                break
            share = left if at == len(entrants) - 1 else max(left / 2, left / (len(entrants) - at))
            race.run(planner, share, progress)
        return race.result()

    def _entrants(self, tell: Progress) -> Iterator[Planner]:
        if self.planners:
            yield from self.planners
            return
        known = available()
        names = [*(n for n in _FIRST if n in known), *(n for n in known if n not in _FIRST)]
        for name in names:
            if name == self.name:
                continue
            try:
                yield known[name].load()()
            except (FBError, TypeError) as error:
                # A broken plug-in, or one that needs options, must not stop the others.
                tell(f"auto: {name} left out: {error}")


@dataclass
class _Race:
    program: Program
    budget: Budget | None
    accept: Accept | None
    tell: Progress
    best: Optimal | Feasible | TimedOut | None = None
    refused: list[Infeasible] = field(default_factory=list)
    late: bool = False

    @property
    def settled(self) -> bool:
        return isinstance(self.best, Optimal)

    def run(self, planner: Planner, time_limit_s: float, progress: Progress | None) -> None:
        name = format_planner(planner)
        self.tell(f"auto: {name}")
        result = planner.plan(
            self.program, self.budget, time_limit_s=time_limit_s, progress=progress
        )
        match result:
            case Infeasible():
                self.refused.append(result)
            case TimedOut(schedule=None):
                self.late = True
            case _ if self.best is not None and result.time_ns >= self.best.time_ns:
                pass
            case _ if self._holds(name, result.schedule):
                self.best = result
                self.tell(f"auto: {name} leads with {result.time_ns / 1e6:.3f} ms")

    def _holds(self, name: str, schedule: Schedule | None) -> bool:
        if schedule is None:
            return False
        try:
            trace = simulate(self.program, schedule)
        except FBError as error:
            self.tell(f"auto: the plan of {name} is not valid and left out: {error}")
            return False
        if self.budget is not None and peak_of(trace, self.budget.kind) > self.budget.bytes:
            self.tell(f"auto: the plan of {name} is over the budget and left out")
            return False
        if self.accept is not None and not self.accept(schedule):
            self.tell(f"auto: the plan of {name} was not accepted")
            return False
        return True

    def result(self) -> PlanResult:
        """The best plan; else the refusal that knows the least budget."""
        if self.best is not None:
            return self.best
        if self.late or not self.refused:
            return TimedOut(None, 0, None)
        return min(
            self.refused,
            key=lambda r: r.min_budget.bytes if r.min_budget is not None else 1 << 62,
        )
