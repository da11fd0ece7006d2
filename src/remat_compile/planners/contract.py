"""The contract of a planner, and its possible answers.

A planner is a frozen dataclass whose fields are its options. `plan` never raises for
a budget it cannot meet: outcomes are values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from ..ir.diagnostics import Diagnostic
from ..ir.program import Budget, Program
from ..ir.schedule import Schedule

Progress = Callable[[str], None]
"""Takes one line for people on how far the planner has come."""


@dataclass(frozen=True)
class Optimal:
    """No schedule under the budget takes less time: `time_ns == lower_bound_ns`.

    As every bound, this holds among the schedules that the planner's page names: those whose
    first executions keep the order of capture, or all if its own do not; those that only compute
    and free, or with `copies_of` also those that copy.
    """

    schedule: Schedule
    time_ns: int
    lower_bound_ns: int | None


@dataclass(frozen=True)
class Feasible:
    """A schedule under the budget."""

    schedule: Schedule
    time_ns: int
    lower_bound_ns: int | None

    @property
    def gap(self) -> float:
        """`time_ns / lower_bound_ns - 1`; 0 where there is no bound."""
        return self.time_ns / self.lower_bound_ns - 1 if self.lower_bound_ns else 0.0


@dataclass(frozen=True)
class Infeasible:
    """No plan was found.

    `min_budget` is the least for which this planner found one (None: for none at all),
    `floor_bytes` a proven lower bound of the same kind as the budget for any planner,
    and `why` says what holds the memory, for people; `names_both` if these two numbers too.
    `short_of` is the memory that there is too little of.
    """

    min_budget: Budget | None
    floor_bytes: int
    why: Diagnostic
    names_both: bool = False
    short_of: Literal["device", "host"] = "device"


@dataclass(frozen=True)
class NotApplicable:
    """The planner does not plan graphs like this one; `why` (FB0409) says which it plans."""

    why: Diagnostic


@dataclass(frozen=True)
class TimedOut:
    """The time limit ended the search; `schedule` is the best plan under the budget so
    far, with its `time_ns` (0 without one)."""

    schedule: Schedule | None
    time_ns: int
    lower_bound_ns: int | None


PlanResult = Optimal | Feasible | Infeasible | NotApplicable | TimedOut


def makes_copies(planner: object) -> bool:
    """True if the planner may copy to the host. Its bounds then hold for plans with copies too,
    and it needs a target with a link; a schedule with copies of any other planner is refused."""
    return bool(getattr(planner, "copies", False))


def uses_homes(planner: object) -> bool:
    """True if the planner may have storage of the caller on the host between two steps. Bounds that
    count it on the device all the time do not hold for its plans."""
    return bool(getattr(planner, "homes", False))


@runtime_checkable
class Planner(Protocol):
    """A way to make schedules. Implementations are frozen dataclasses.

    `applicability` says in words which graphs it plans, `source` where it comes from. One whose
    schedules may copy to the host says so by an attribute `copies` that is true (`makes_copies`);
    one that has the caller's storage there between steps, by `homes` (`uses_homes`).
    """

    name: ClassVar[str]
    applicability: ClassVar[str]
    source: ClassVar[str]

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
