"""FB-Graph + budget -> schedule. One file per planner; found by entry point."""

from .contract import Feasible, Infeasible, NotApplicable, Optimal, Planner, PlanResult, TimedOut
from .registry import PlannerInfo, available, format_planner, parse_planner

__all__ = [
    "Feasible",
    "Infeasible",
    "NotApplicable",
    "Optimal",
    "PlanResult",
    "Planner",
    "PlannerInfo",
    "TimedOut",
    "available",
    "format_planner",
    "parse_planner",
]
