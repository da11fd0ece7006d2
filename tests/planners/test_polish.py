"""Polish never returns a worse plan, and improves poor ones."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import pytest

from helpers.clock import HANGS_S, skips
from helpers.planners.exact_claims import budget_at, holds, reachable
from helpers.planners.graphs import chain, random_dag, residual, transformer, unet
from helpers.planners.stub import Stub
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import (
    Feasible,
    Infeasible,
    Optimal,
    TimedOut,
    format_planner,
    parse_planner,
)
from remat_compile.planners.instance import Instance
from remat_compile.planners.polish.polish import Descent, Polish
from remat_compile.planners.programs.events import Windows, window_events
from remat_compile.planners.solvers.solve import MilpSolver


@dataclass(frozen=True)
class Wasteful(Stub):
    """The plan of dtr with the forward run once more for nothing."""

    name: ClassVar[str] = "wasteful"

    def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
        assert budget is not None
        instance = Instance.of(program, budget.kind)
        first = instance.names_C.index("F0")
        order = [*instance.capture[: instance.loss], first, *instance.capture[instance.loss :]]
        assert instance.peak(order) <= budget.bytes
        return Feasible(instance.schedule(order, self.name), instance.time_ns(order), None)


@pytest.mark.parametrize(
    ("graph", "share"), [(residual(3), 0.4), (unet(3), 0.3), (random_dag(40, 10), 0.5)]
)
def test_a_poor_plan_becomes_as_good_as_the_optimum(graph, share: float) -> None:  # type: ignore[no-untyped-def]
    budget = reachable(graph, share)
    poor = parse_planner("periodic").plan(graph, budget)
    if isinstance(poor, Infeasible):
        poor = parse_planner("dtr{rounds=0}").plan(graph, budget)
        inner = "dtr{rounds=0}"
    else:
        inner = "periodic"
    exact = parse_planner("rk-checkmate").plan(graph, budget)
    assert isinstance(exact, Optimal)
    result = parse_planner(f"polish{{of={inner}}}").plan(graph, budget, time_limit_s=10)
    holds(graph, budget, result)
    assert result.time_ns <= poor.time_ns  # type: ignore[union-attr]
    base = Instance.of(graph, "activation").base_time_ns
    assert result.time_ns - exact.time_ns <= 0.01 * base  # type: ignore[union-attr]


def test_what_is_run_for_nothing_goes() -> None:
    program = chain(6)
    instance = Instance.of(program, "activation")
    budget = Budget(2 * instance.peak(instance.capture), "activation")
    result = Polish(of=Wasteful()).plan(program, budget, time_limit_s=10)
    assert isinstance(result, Optimal)
    assert result.time_ns == instance.base_time_ns
    assert result.schedule.planner == "polish{of=wasteful}"


def test_no_window_is_begun_past_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 10 of 95 seconds, and none is given more than is left."""
    program = transformer(2)
    budget = reachable(program, 0.5)
    unit_s, limits_s = 10 * HANGS_S, list[float]()
    skip, improve = skips(monkeypatch), Descent._improve

    def slow(self: Descent, size: int, limit_s: float, solver: MilpSolver) -> tuple[bool, bool]:
        limits_s.append(limit_s)
        skip(unit_s)
        return improve(self, 40, 0.0, solver)

    monkeypatch.setattr(Descent, "_improve", slow)
    monkeypatch.setattr("remat_compile.planners.polish.polish._SLOW_S", 2 * unit_s)
    planner = parse_planner("polish{of=dtr{rounds=0}}")
    result = planner.plan(program, budget, time_limit_s=9.5 * unit_s)
    holds(program, budget, result)
    assert len(limits_s) == 10
    left_s = [(9.5 - k) * unit_s for k in range(10)]
    assert limits_s == pytest.approx([min(2 * unit_s, s) for s in left_s], abs=HANGS_S)


def test_no_time_returns_the_other_planners_answer() -> None:
    program = transformer(2)
    result = parse_planner("polish").plan(program, reachable(program, 0.5), time_limit_s=0)
    assert isinstance(result, TimedOut | Feasible)


def test_a_refusal_is_passed_on() -> None:
    program = random_dag(0, 10)
    result = parse_planner("polish").plan(program, budget_at(program, 0.0))
    assert isinstance(result, Infeasible)
    assert result.min_budget is not None


def test_windows_leave_the_plan_as_an_option() -> None:
    """The events that the plan runs give the plan back, whatever the window."""
    program = random_dag(11, 14)
    instance = Instance.of(program, "activation")
    plan = parse_planner("dtr").plan(program, reachable(program, 0.3))
    assert isinstance(plan, Feasible)
    index = {name: i for i, name in enumerate(instance.names_C)}
    order = [index[s.cnode] for s in plan.schedule.steps if hasattr(s, "cnode")]
    windows = Windows(instance, Random(3))
    for most in (10, 40, 200):
        window = windows.draw(most)
        events, runs = window_events(instance, order, window)
        assert [e.cnode for i, e in enumerate(events) if not e.optional or i in runs] == order
        assert {e.cnode for e in events if e.first} == set(instance.capture)
        started: set[int] = set()
        for event in events:
            assert event.first or event.cnode in started
            started.add(event.cnode)


def test_text_forms_nest() -> None:
    text = "polish{of=dtr{rounds=3}, seed=4}"
    planner = parse_planner(text)
    assert format_planner(planner) == text
    assert format_planner(parse_planner("polish")) == "polish"
    with pytest.raises(FBError) as caught:
        parse_planner("polish{of=polish}")
    assert caught.value.diagnostics[0].code == "FB0404"
