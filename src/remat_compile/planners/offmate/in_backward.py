"""`in-backward`: any planner for forward and backward, and each update as soon as it can be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar

from ...ir.analysis.liveness import floor_bytes
from ...ir.program import Budget, Program
from ...ir.rewrites.updates import for_planners, has_updates, with_updates
from ...ir.semantics.simulate import Sizes, simulate
from ..auto import Auto
from ..contract import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    Planner,
    PlanResult,
    Progress,
    TimedOut,
)
from ..registry import format_planner
from ..results import check_budget, peak_of
from ..spelling.options import checked

_ROUNDS = 4


@dataclass(frozen=True)
class InBackward:
    """The planner `of` plans forward and backward. Each update stands behind the last reader, and
    frees the gradient: those of a step are never there together. All stays on the device.
    Where an update has to wait for a computation that runs again, and the step takes more than `of`
    was told, `of` gets a smaller budget."""

    name: ClassVar[str] = "in-backward"
    applicability: ClassVar[str] = "a step with an optimizer, what the planner it runs accepts"
    source: ClassVar[str] = "Lv et al. 2023 (LOMO), section 3.1: updates fused with the backward"
    updates: ClassVar[bool] = True
    of: Planner = field(default_factory=Auto)

    def __post_init__(self) -> None:
        checked(self)

    @property
    def copies(self) -> bool:
        """As the planner it runs."""
        return bool(getattr(self.of, "copies", False))

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        """As `Planner.plan`."""
        check_budget(budget)
        deadline = monotonic() + time_limit_s
        if not has_updates(program):
            result = self.of.plan(program, budget, time_limit_s=time_limit_s, progress=progress)
            schedule = getattr(result, "schedule", None)
            if isinstance(result, Optimal | Feasible | TimedOut) and schedule is not None:
                return replace(result, schedule=replace(schedule, planner=format_planner(self)))
            return result
        base = for_planners(program)
        states = 0 if budget is not None and budget.kind == "activation" else _state_bytes(program)
        excess = 0
        answer: PlanResult | None = None
        for left in range(_ROUNDS, 0, -1):
            asked = budget
            if budget is not None:
                asked = replace(budget, bytes=max(1, budget.bytes - states - excess))
            limit_s = max(1.0, (deadline - monotonic()) / (1 if left == 1 else 2))
            answer = self.of.plan(base, asked, time_limit_s=limit_s, progress=progress)
            schedule = getattr(answer, "schedule", None)
            if schedule is None:
                break
            made = replace(with_updates(program, schedule), planner=format_planner(self))
            trace = simulate(program, made)
            over = 0 if budget is None else peak_of(trace, budget.kind) - budget.bytes
            if over <= 0:
                return Feasible(made, trace.time_ns, None)
            excess += over
        return _refused(program, states, answer)


def for_updates(planner: Planner, program: Program) -> Planner:
    """A planner of `program`: around one that knows no updates, where there are some."""
    known = not has_updates(program) or getattr(planner, "updates", False)
    return planner if known else InBackward(planner)


def _state_bytes(program: Program) -> int:
    """Bytes of the states of the optimizer."""
    sizes = Sizes.of(program).anode
    return sum(sizes[a.name] for a in program.graph.anodes if a.kind == "opt_state")


def _refused(program: Program, states: int, result: PlanResult | None) -> PlanResult:
    """The refusal of `of`, with the states of the optimizer on top. The floor is of plans that have
    parameters and states on the host too."""
    if not isinstance(result, Infeasible):
        return result if isinstance(result, NotApplicable) else TimedOut(None, 0, None)
    least = result.min_budget
    if least is not None and least.kind == "device":
        least = replace(least, bytes=least.bytes + states)
    kinds = ("param", "opt_state")
    homes = [a.name for a in program.graph.anodes if a.kind in kinds]
    notes = tuple(note for note in result.why.notes if "no plan of any planner" not in note.message)
    why = replace(result.why, notes=notes)
    floor = floor_bytes(program, homes=homes)[0]
    return replace(result, min_budget=least, floor_bytes=floor, why=why, names_both=False)
