"""Lower bounds on the time of plans of one program, each worked out once.

Planners answer with the bounds that they have anyway; who runs them asks here for better ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic

from ...ir.analysis.liveness import BudgetKind
from ...ir.analysis.order import capture_order
from ...ir.program import Budget, Program
from ...ir.schedule import Compute, Schedule
from ..instance import Instance
from ..solvers import MilpSolver
from .links import joint_ns
from .relaxation import lower_bound_ns

_SHARE = 0.1
_LONGEST_S = 5.0
_SHORTEST_S = 0.7
"""A bound may take this share of the time left, and never longer than the second. In less
than the third a solver hardly starts, so it is not started."""
_MOST_CNODES = 80
"""Up to this size the relaxation takes a second or so."""


@dataclass(frozen=True)
class TimeBounds:
    """Bounds that are known are remembered, so that many planners may be held to one."""

    program: Program
    _known: dict[tuple[Budget, bool, bool], tuple[int, float]] = field(
        default_factory=dict, repr=False
    )
    """Each bound, and the seconds from which on it is worth to ask for a better one."""

    def lower_ns(
        self, budget: Budget, left_s: float, *, any_order: bool, copies: bool = False
    ) -> int:
        """Nanoseconds that no plan under the budget can beat: none whose first executions
        keep the order of capture, or with `any_order` none at all. With `copies` those that copy
        to the host are among them; of any order none is known then.

        Takes a tenth of `left_s` (wall clock) and 5 s at most; 0 where that is too little
        for anything.
        """
        key = (budget, any_order, copies)
        if copies and any_order:
            return 0
        limit_s = min(_LONGEST_S, _SHARE * left_s)
        known_ns, enough_s = self._known.get(key, (0, _SHORTEST_S))
        if limit_s < enough_s:
            return known_ns
        kind: BudgetKind = "activation" if budget.kind == "activation" else "device"
        instance = Instance.of(self.program, kind)
        began = monotonic()
        with MilpSolver() as solver:
            if copies:
                bound_ns = joint_ns(instance, self.program.target, budget.bytes, solver, limit_s)
            else:
                bound_ns = lower_bound_ns(
                    instance, budget.bytes, solver, limit_s, _MOST_CNODES, any_order=any_order
                )
        # One that was cut short may be better with more time.
        enough_s = inf if monotonic() - began < limit_s else 2 * limit_s
        self._known[key] = max(bound_ns, known_ns), enough_s
        return max(bound_ns, known_ns)

    def lower_ns_for(
        self, schedule: Schedule, budget: Budget, left_s: float, *, copies: bool = False
    ) -> int | None:
        """`lower_ns` of the plans that this one is compared with: those that copy too where it
        does, or where its planner may (`copies`). None where there is no such bound, as for plans
        that have storage of the caller on the host between two steps."""
        if schedule.homes:
            return None
        any_order = not keeps_capture_order(self.program, schedule)
        copies = copies or schedule.has_copies
        return self.lower_ns(budget, left_s, any_order=any_order, copies=copies) or None


def keeps_capture_order(program: Program, schedule: Schedule) -> bool:
    """True if all first executions are in the order of capture."""
    runs = (step.cnode for step in schedule.steps if isinstance(step, Compute))
    return tuple(dict.fromkeys(runs)) == capture_order(program.graph)
