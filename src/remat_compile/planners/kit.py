"""The names that planners build on, ours and those of other packages
(`docs/guide/planner_package.md`)."""

from ..ir.analysis.liveness import lower_bound_bytes
from ..ir.program import Budget, Program
from ..ir.schedule import Compute, Free, Schedule
from ..ir.semantics.simulate import Trace, simulate
from .contract import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    Planner,
    PlanResult,
    Progress,
    TimedOut,
)
from .instance import Instance, Order, order_without
from .registry import format_planner
from .results import Task
from .search import SearchPlanner
from .spelling.options import checked

__all__ = [
    "Budget",
    "Compute",
    "Feasible",
    "Free",
    "Infeasible",
    "Instance",
    "NotApplicable",
    "Optimal",
    "Order",
    "PlanResult",
    "Planner",
    "Program",
    "Progress",
    "Schedule",
    "SearchPlanner",
    "Task",
    "TimedOut",
    "Trace",
    "checked",
    "format_planner",
    "lower_bound_bytes",
    "order_without",
    "simulate",
]
