"""What a planner is, and what it may answer.

A planner is a frozen dataclass whose fields are its options. `plan` never raises for
a budget it cannot meet: outcomes are values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from ..ir.diagnostics import Diagnostic
from ..ir.program import Budget, Program
from ..ir.schedule import Schedule

__all__ = ["Feasible", "Infeasible", "Optimal", "PlanResult", "Planner", "Progress", "TimedOut"]

Progress = Callable[[str], None]
"""Takes one line for people on how far the planner has come."""


@dataclass(frozen=True)
class Optimal:
    """No schedule under the budget takes less time: `time_ns == lower_bound_ns`.

    As every bound, this holds among the schedules that the planner's page names: those whose
    first executions keep the order of capture, or all if its own do not.
    """

    schedule: Schedule
    time_ns: int
    lower_bound_ns: int | None


@dataclass(frozen=True)
class Feasible:
    """A schedule under the budget; `gap` is `time_ns / lower_bound_ns - 1` (0 where
    there is no bound or no time)."""

    schedule: Schedule
    time_ns: int
    lower_bound_ns: int | None
    gap: float


@dataclass(frozen=True)
class Infeasible:
    """No plan was found.

    `min_budget` is the least for which this planner found one (None: for none at all),
    `floor_bytes` a proven lower bound of the same kind as the budget for any planner,
    and `why` says what holds the memory, for people.
    """

    min_budget: Budget | None
    floor_bytes: int
    why: Diagnostic


@dataclass(frozen=True)
class TimedOut:
    """The time limit ended the search; `schedule` is the best plan under the budget so
    far, with its `time_ns` (0 without one)."""

    schedule: Schedule | None
    time_ns: int
    lower_bound_ns: int | None


PlanResult = Optimal | Feasible | Infeasible | TimedOut


@runtime_checkable
class Planner(Protocol):
    """A way to make schedules. Implementations are frozen dataclasses."""

    name: ClassVar[str]

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        """A schedule of `program` whose peak is at most `budget` (None: no bound).

        Sizes are taken at the sample of the symbols. FB0408 for a budget that is not
        positive; every other outcome is a value.
        """
        ...
