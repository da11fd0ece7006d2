"""`least` as a budget: the fewest bytes that a planner has a plan for, within its time.

For `dtr`, and for `auto` as a whole, walks of `dtr` that vary what they decide look for fewer
still (`planners/eviction/lean.py`): by number, so that the same bytes come out on a busy machine,
unless the time limit ends them, and then the plan says so (FB0732)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from ...ir.analysis.states import searched_bound_bytes
from ...ir.diagnostics import Diagnostic
from ...ir.program import Budget, Program
from ...ir.wording import worded
from ...planners.auto import Auto
from ...planners.contract import Feasible, Infeasible, Optimal, TimedOut, makes_copies
from ...planners.eviction.dtr import Dtr
from ...planners.eviction.keep import keep_what_fits
from ...planners.eviction.search import Search
from ...planners.instance import Instance
from ...planners.offmate.in_backward import for_updates
from ...planners.registry import format_planner
from ...planners.results import kind_of
from ..budget import Baseline, BudgetKind, format_bytes
from ..run_planner import Attempt, Phases, Planned, schedule_of

if TYPE_CHECKING:
    from ...ir.schedule import Schedule
    from ...planners.contract import Planner, PlanResult

CLOSE = 0.005
"""The search ends where the least found and what is out of reach are this close."""
SHARE = 0.25
"""Share of the time that is left, for one budget."""
WALKS = 20_000
"""The most that look for fewer bytes."""
SHARE_OF_WALKS = 0.6
"""Share of the time that is left when they begin."""
LEAST_S = 0.05
"""A planner is not asked for less time than this."""


@dataclass
class _LeastSearch:
    """State of the search: the plans found, and the bytes that the planner had no plan for."""

    program: Program
    planner: Planner
    kind: BudgetKind
    time_limit_s: float
    phases: Phases
    best_bytes: float = inf
    best: tuple[Attempt, Schedule] | None = None
    out_of_reach: int = 0
    late: bool = False
    """True where walks had no time to end."""
    start_s: float = field(default_factory=lambda: time.monotonic())

    @property
    def left_s(self) -> float:
        return self.start_s + self.time_limit_s - time.monotonic()

    def ask(self, size: int) -> PlanResult:
        """Return the answer of the planner for so many bytes, its plan or its refusal noted."""
        limit_s = max(LEAST_S, SHARE * self.left_s)
        budget = Budget(size, self.kind)
        attempt = Attempt(self.program, self.planner, budget, limit_s, self.phases)
        result = attempt.ask(keep_on_interrupt=False)
        schedule = getattr(result, "schedule", None)
        if isinstance(result, Optimal | Feasible | TimedOut) and schedule is not None:
            self._take(attempt, schedule)
        else:
            self.out_of_reach = max(self.out_of_reach, size)
        return result

    def _take(self, attempt: Attempt, schedule: Schedule) -> None:
        trace = attempt.prover.simulate(schedule, attempt.name)
        peak = trace.peak_bytes if self.kind == "device" else trace.activation_peak_bytes
        if peak < self.best_bytes:
            self.best_bytes, self.best = peak, (attempt, schedule)
            self.phases.say(f"a plan of {format_bytes(peak)}")

    def look(self, floor: int) -> PlanResult:
        """The answer for the floor; then the least that a refusal names (that of `dtr` where the
        planner names none), then between what was found and what was not."""
        first = self.ask(floor)
        if self.best is None:
            known = isinstance(first, Infeasible) and first.min_budget is not None
            reach = (
                first
                if known
                else for_updates(Dtr(rounds=0), self.program).plan(
                    self.program, Budget(floor, self.kind)
                )
            )
            first = self._ask_named(reach) or first
        if self.best is not None:
            self._vary_walks(floor)
        while self.best is not None and self.left_s > LEAST_S:
            low, high = self.out_of_reach, int(self.best_bytes)
            if high - low <= max(1, CLOSE * high):
                break
            answer = self.ask((low + high) // 2)
            if self.left_s > LEAST_S:
                self._ask_named(answer)
        return first

    def _vary_walks(self, floor: int) -> None:
        """Vary the decisions of `dtr` by walks, where this planner runs them."""
        match self.planner:
            case Dtr():
                planner = replace(self.planner, walks=max(self.planner.walks, WALKS))
            case Auto(planners=()):
                planner = Dtr(walks=WALKS)
            case _:
                return
        left_s = SHARE_OF_WALKS * self.left_s
        if left_s < LEAST_S or self.best_bytes <= (1 + CLOSE) * floor:
            return
        instance = Instance.of(self.program, kind_of(Budget(1, self.kind)))
        search = Search(instance, floor, time.monotonic() + left_s, planner.scopes)
        search.walks, search.seed = planner.walks, planner.seed
        with self.phases.phase("plan", "looking for fewer bytes"):
            order = search.least(int((1 + CLOSE) * floor))
            peak = instance.peak(order)
            self.late = search.late
            if peak < self.best_bytes:
                order = keep_what_fits(instance, order, peak)
                budget = Budget(peak, self.kind)
                attempt = Attempt(self.program, planner, budget, self.time_limit_s, self.phases)
                self._take(attempt, instance.schedule(order, format_planner(planner)))

    def _ask_named(self, refusal: PlanResult) -> PlanResult | None:
        """Asks for the least bytes that a refusal names, where they are news."""
        named = refusal.min_budget if isinstance(refusal, Infeasible) else None
        return self.ask(named.bytes) if named and named.bytes < self.best_bytes else None


def run_for_least(
    program: Program,
    planner: Planner,
    floor: Budget | None,
    baseline: Baseline,
    *,
    time_limit_s: float,
    phases: Phases,
) -> Planned:
    """The plan of the fewest bytes of the kind of `floor`, proven, with them as its budget.

    The planner is asked for the highest proven floor first and then, by halves, for what lies
    between what it has a plan for and what it has none for, so more time may find fewer bytes.
    Ctrl-C takes the least so far. FB0460 to FB0466 where there is no plan at all.
    """
    assert floor is not None
    search = _LeastSearch(program, planner, floor.kind, time_limit_s, phases)
    copies = makes_copies(planner) and program.target.has_link
    least, _ = searched_bound_bytes(program, kind_of(floor), copies=copies)
    first: PlanResult | None = None
    try:
        first = search.look(max(floor.bytes, least))
    except KeyboardInterrupt:
        if search.best is None:
            raise
    if search.best is None:
        assert first is not None
        refused = Attempt(program, planner, floor, time_limit_s, phases)
        schedule_of(first, refused, baseline)
        raise AssertionError("what is no plan is refused")
    attempt, schedule = search.best
    budget = Budget(int(search.best_bytes), floor.kind)
    planned = replace(attempt, budget=budget).prove(schedule, None, attempt.name)
    if not search.late:
        return planned
    message = f"the time limit of {time_limit_s:g} s ended the search for fewer bytes"
    hint = worded("with a longer {time_limit_s} a plan may take fewer")
    return replace(planned, warnings=(*planned.warnings, Diagnostic("FB0732", message, hint=hint)))
