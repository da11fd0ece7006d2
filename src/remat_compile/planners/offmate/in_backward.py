"""`in-backward`: any planner for forward and backward, and each update as soon as it can be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar

from ...ir.analysis.updates import gradients_of, has_updates, with_updates, without_updates
from ...ir.program import Budget, Program
from ...ir.semantics.simulate import Sizes, simulate
from ..auto import Auto
from ..contract import Feasible, Infeasible, Planner, PlanResult, Progress, TimedOut
from ..registry import format_planner
from ..results import check_budget, peak_of
from ..spelling.options import checked

_ROUNDS = 4


@dataclass(frozen=True)
class InBackward:
    """The planner `of` plans the step without the optimizer. Then each parameter is updated behind
    its last reader, and its gradient freed: the gradients of a step are never there together. All
    stays on the device. The budget of `of` is as large as the updates leave it, by bisection."""

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
        base = without_updates(program) if has_updates(program) else program

        def attempt(share: float) -> tuple[Feasible | None, PlanResult]:
            left_s = max(1.0, (deadline - monotonic()) / (1 if budget is None else 2))
            asked = None if budget is None else _asked(program, budget, share)
            result = self.of.plan(base, asked, time_limit_s=left_s, progress=progress)
            schedule = getattr(result, "schedule", None)
            if schedule is None:
                return None, result
            made = replace(with_updates(program, schedule), planner=format_planner(self))
            trace = simulate(program, made)
            if budget is not None and peak_of(trace, budget.kind) > budget.bytes:
                return None, result
            return Feasible(made, trace.time_ns, None), result

        best, result = attempt(1.0)
        low, high = 0.0, 1.0
        for last in range(_ROUNDS):
            if best is not None and high == 1.0:
                break  # with the largest budget
            if monotonic() > deadline:
                break
            share = 0.0 if last == _ROUNDS - 1 and best is None else (low + high) / 2
            made, result = attempt(share)
            low, high = (low, share) if made is None else (share, high)
            if made is not None and (best is None or made.time_ns < best.time_ns):
                best = made
        return best or _refused(program, result)


def _asked(program: Program, budget: Budget, share: float) -> Budget:
    """The budget of the forward and the backward, where the updates free a share of gradients."""
    sizes, graph = Sizes.of(program).anode, program.graph
    states = sum(sizes[a.name] for a in graph.anodes if a.kind == "opt_state")
    names = {name for c in graph.cnodes if c.is_update for name in gradients_of(graph, c)}
    gradients = round(share * sum(sizes[name] for name in names))
    if budget.kind == "device":
        return replace(budget, bytes=max(1, budget.bytes - states + gradients))
    return budget


def _refused(program: Program, result: PlanResult) -> PlanResult:
    """The refusal of `of`, with the states of the optimizer on top."""
    if not isinstance(result, Infeasible):
        return TimedOut(None, 0, None)
    sizes = Sizes.of(program).anode
    states = sum(sizes[a.name] for a in program.graph.anodes if a.kind == "opt_state")
    least = result.min_budget
    if least is not None and least.kind == "device":
        least = replace(least, bytes=least.bytes + states)
    return replace(result, min_budget=least, floor_bytes=result.floor_bytes + states)
