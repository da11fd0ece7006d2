"""The plans that the members of a portfolio hand in, and the best of them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...ir.diagnostics import FBError
from ...ir.program import Budget, Program
from ...ir.schedule import Schedule
from ...ir.semantics.simulate import simulate
from ..bounds.time_bounds import keeps_capture_order
from ..contract import Feasible, Infeasible, NotApplicable, Optimal, PlanResult, Progress, TimedOut
from ..results import peak_of

MOST_ABOVE = 10.0
"""A bound that the plan is further above than so many times says nothing of how good it is."""

Accept = Callable[[Schedule], bool]

NEAR = 1.005
"""A plan so near to the bound, as a ratio of times, is taken for the best."""


@dataclass(frozen=True, order=True)
class RacePlan:
    """A plan that simulates under the budget; `schedule` carries the planner's text form."""

    time_ns: int
    turn: int
    schedule: Schedule = field(compare=False)
    ordered: bool = field(compare=False, default=True)
    """True if its first executions are in the order of capture."""

    polished: bool = field(compare=False, default=False)

    @property
    def planner(self) -> str:
        return self.schedule.planner


@dataclass
class PlanRace:
    """`base_ns` is the time with nothing recomputed: no plan takes less, and none less than
    `bound_ns`; none whose first executions are in the order of capture less than `ordered_ns`."""

    program: Program
    budget: Budget | None
    base_ns: int
    report: Progress
    entries: list[RacePlan] = field(default_factory=list)
    refused: list[Infeasible] = field(default_factory=list)
    bound_ns: int = 0
    ordered_ns: int = 0
    late: bool = False
    copies: bool = False
    """True if plans that copy to the host take part; bounds then cover such plans."""

    def __post_init__(self) -> None:
        self.bound_ns = self.ordered_ns = self.base_ns

    @property
    def best(self) -> RacePlan | None:
        return self.entries[0] if self.entries else None

    @property
    def settled(self) -> bool:
        return self.best is not None and self.best.time_ns <= NEAR * self.bound_of(self.best)

    @property
    def to_gain_ns(self) -> int | None:
        """The most time of a step that another plan may save; None where there is no plan yet."""
        return None if self.best is None else self.best.time_ns - self.bound_of(self.best)

    @property
    def left_order(self) -> bool:
        """True if the best plan reorders the capture and is faster than any plan in the captured
        order."""
        best = self.best
        return best is not None and not best.ordered and best.time_ns <= self.ordered_ns

    def bound_of(self, entry: RacePlan) -> int:
        """A lower bound on the time of plans in this plan's order."""
        return max(self.bound_ns, self.ordered_ns) if entry.ordered else self.bound_ns

    def take(
        self, name: str, result: PlanResult, *, trusted: bool = True, polished: bool = False
    ) -> bool:
        """Takes a result in; whether it leads now. The claims of a result are checked, but
        for the lower bound, which only a `trusted` planner may raise."""
        match result:
            case NotApplicable(why):
                self.report(f"auto: {name} left out: {why.message}")
                return False
            case Infeasible():
                self.refused.append(result)
                return False
            case TimedOut(schedule=None):
                self.late = True
        ordered = result.schedule is None or keeps_capture_order(self.program, result.schedule)
        if trusted and result.lower_bound_ns is not None:
            self.raise_bound(name, result.lower_bound_ns, any_order=not ordered)
        if result.schedule is None:
            return False
        time_ns = self._checked_ns(name, result.schedule)
        if time_ns is None:
            return False
        leads = self.best is None or time_ns < self.best.time_ns
        schedule = replace(result.schedule, planner=name)
        insort(self.entries, RacePlan(time_ns, len(self.entries), schedule, ordered, polished))
        if leads:
            self.report(f"auto: {name} leads, {self.standing()}")
        return leads

    def raise_bound(self, name: str, bound_ns: int, *, any_order: bool = False) -> None:
        """Takes in a bound: of plans in the order of capture, or of all."""
        if bound_ns <= (self.bound_ns if any_order else max(self.bound_ns, self.ordered_ns)):
            return
        against = (e.time_ns for e in self.entries if any_order or e.ordered)
        if bound_ns > min(against, default=bound_ns):
            self.report(f"auto: the bound of {name} is above a plan that is known; left out")
            return
        if any_order:
            self.bound_ns = bound_ns
        else:
            self.ordered_ns = bound_ns
        if self.best is not None:
            self.report(f"auto: {name} raises the bound, {self.standing()}")

    def standing(self) -> str:
        """The best plan in words."""
        if self.best is None or not self.base_ns:
            return "nothing recomputed" if self.best else "no plan yet"
        extra = 100 * (self.best.time_ns / self.base_ns - 1)
        text = f"{extra:.2f} % over the time without budget"
        bound_ns = self.bound_of(self.best)
        if not bound_ns or self.best.time_ns > MOST_ABOVE * bound_ns:
            return text  # the bound says nothing
        return f"{text}, at most {100 * (self.best.time_ns / bound_ns - 1):.2f} % above the best"

    def _checked_ns(self, name: str, schedule: Schedule) -> int | None:
        try:
            trace = simulate(self.program, schedule)
        except FBError as error:
            self.report(f"auto: the plan of {name} is not valid and left out: {error}")
            return None
        if self.budget is not None and peak_of(trace, self.budget.kind) > self.budget.bytes:
            self.report(f"auto: the plan of {name} is over the budget and left out")
            return None
        return trace.time_ns

    def result(self, accept: Accept | None) -> PlanResult:
        """The fastest plan that `accept` holds for; else the refusal that knows the least
        budget."""
        for entry in self.entries:
            if accept is None or accept(entry.schedule):
                return self._answer(entry)
            self.report(f"auto: the plan of {entry.planner} was not accepted")
        if self.late or not self.refused:
            return TimedOut(None, 0, self.bound_ns)
        return min(
            self.refused,
            key=lambda r: r.min_budget.bytes if r.min_budget is not None else 1 << 62,
        )

    def _answer(self, entry: RacePlan) -> PlanResult:
        time_ns, bound = entry.time_ns, min(self.bound_of(entry), entry.time_ns)
        if time_ns == bound:
            return Optimal(entry.schedule, time_ns, bound)
        return Feasible(entry.schedule, time_ns, bound)
