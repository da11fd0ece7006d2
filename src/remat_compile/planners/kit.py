"""What a planner outside of this package builds on; `docs/writing_a_planner.md` uses it."""

from ..ir.liveness import lower_bound_bytes
from ..ir.program import Budget, Program
from ..ir.schedule import Compute, Free, Schedule
from ..ir.simulate import Trace, simulate
from ._instance import Instance, Order
from ._options import checked
from ._results import Task
from .contract import Feasible, Infeasible, Optimal, Planner, PlanResult, Progress, TimedOut
from .registry import format_planner

__all__ = [
    "Budget",
    "Compute",
    "Feasible",
    "Free",
    "Infeasible",
    "Instance",
    "Optimal",
    "Order",
    "PlanResult",
    "Planner",
    "Program",
    "Progress",
    "Schedule",
    "Task",
    "TimedOut",
    "Trace",
    "checked",
    "format_planner",
    "lower_bound_bytes",
    "simulate",
]
