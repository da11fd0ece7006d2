"""What asks planners again and again ends at its time limit: the clock moves on with what is asked,
and that is counted."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from helpers.clock import HANGS_S, Clock, skips
from helpers.planners.graphs import chain, transformer
from helpers.planners.stub import Stub
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Free
from remat_compile.planners import Planner
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.plans import run_planner
from remat_compile.plans.budget import Baseline
from remat_compile.plans.fusion.ways import MOST_ROUNDS, FusedWays
from remat_compile.plans.run_planner import Phases
from remat_compile.plans.sweep import prices
from remat_compile.plans.sweep.least import SHARE, run_for_least
from remat_compile.plans.sweep.prices import prices_around
from remat_compile.report.subject import Subject

UNIT_S = 10 * HANGS_S
"""A limit is 100 of them: nothing that really passes counts."""


def slow(units: int, skip: Clock, limits_s: list[float]) -> Planner:
    """`dtr`, as if it took so many units; not found by its name, and so run in this process."""

    @dataclass(frozen=True)
    class Slow(Stub):
        name: ClassVar[str] = "slow"

        def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
            limits_s.append(limit_s)
            skip(units * UNIT_S)
            return Dtr(rounds=0).plan(program, budget)

    return Slow()


def test_the_search_for_the_least_asks_nobody_past_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = chain(12)
    baseline = Baseline.of(program)
    floor = Budget(baseline.activation_floor_bytes, "activation")
    skip = skips(monkeypatch)
    monkeypatch.setattr(run_planner, "GRACE_S", 1000 * UNIT_S)
    monkeypatch.setattr(run_planner.TimeBounds, "lower_ns_for", lambda *_, **__: None)
    counts = []
    for units in (0, 20):
        limits_s: list[float] = []
        planner = slow(units, skip, limits_s)
        run_for_least(program, planner, floor, baseline, time_limit_s=100 * UNIT_S, phases=Phases())
        counts.append(len(limits_s))
    assert counts[0] > counts[1] == 5
    left_s = [SHARE * n * UNIT_S for n in (100, 80, 60, 40, 20)]
    assert limits_s == pytest.approx(left_s, abs=UNIT_S)


def test_no_price_is_asked_for_past_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those nearest to the peak stand."""
    program = transformer(2)
    peak = Baseline.of(program).activation_peak_bytes
    made = Dtr(rounds=0).plan(program, Budget(2 * peak // 3, "activation"))
    skip, cheap = skips(monkeypatch), prices.cheap_plan
    limits_s: list[float] = []

    def late(program: Program, budget: Budget, time_limit_s: float) -> int | None:
        limits_s.append(time_limit_s)
        skip(40 * UNIT_S)
        return cheap(program, budget, HANGS_S)

    monkeypatch.setattr(prices, "cheap_plan", late)
    subject = Subject(program, made.schedule)  # type: ignore[union-attr]
    some = prices_around(subject, 100 * UNIT_S)
    assert not some.is_complete
    assert limits_s == pytest.approx([n * UNIT_S for n in (100, 60, 20)], abs=UNIT_S)
    assert len(some.prices) == 2  # and that of the peak itself
    assert prices_around(subject, 10_000 * UNIT_S).is_complete


@pytest.mark.parametrize(("runs", "plans"), [(2, 3), (1, 1)])
def test_no_plan_to_fold_is_asked_for_past_the_limit(
    runs: int, plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 40 of 100 units, and another would be made each time. What is done between the
    first and its kernels takes of no limit. None after one that runs everything once: at higher
    prices nothing else would run again."""
    program = transformer(1)
    skip, limits_s = skips(monkeypatch), list[float]()

    def planned(self: Any, program: Program, time_limit_s: float) -> Any:
        limits_s.append(time_limit_s)
        skip(40 * UNIT_S)
        steps = (Compute("F1"),) * runs + (Free(f"x{len(limits_s)}"),)
        return SimpleNamespace(schedule=SimpleNamespace(steps=steps))

    plan: Any = SimpleNamespace(program=program, budget=None)
    request: Any = SimpleNamespace(time_limit_s=100 * UNIT_S)
    measured: Any = SimpleNamespace(may_fuse=lambda c: False)
    for name, result in (
        ("folded", None),
        ("shares", {}),
        ("begin", None),
        ("done", SimpleNamespace(cnodes=(1,))),
        ("bound", None),
    ):
        monkeypatch.setattr(FusedWays, name, lambda self, *_, result=result: result)
    monkeypatch.setattr(FusedWays, "planned", planned)
    fusion = FusedWays(plan, request, Phases(), measured)
    drafted = fusion.drafted()
    skip(1000 * UNIT_S)
    made = [*fusion.planned_to_fold(drafted)]
    assert len(made) == len(limits_s) == plans < MOST_ROUNDS
    assert limits_s == pytest.approx([n * UNIT_S for n in (100, 60, 20)][:plans], abs=UNIT_S)


def test_what_planning_took_is_no_time_for_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 units planning took 40."""
    program = transformer(1)
    skip, limits_s = skips(monkeypatch), list[float]()

    def bound(self: Any, schedule: Any, budget: Any, left_s: float, **_: object) -> None:
        limits_s.append(left_s)

    monkeypatch.setattr(run_planner.TimeBounds, "lower_ns_for", bound)
    monkeypatch.setattr(run_planner, "GRACE_S", 1000 * UNIT_S)
    baseline = Baseline.of(program)
    run_planner.run_planner(
        program,
        slow(40, skip, []),
        Budget(baseline.activation_peak_bytes, "activation"),
        baseline,
        time_limit_s=100 * UNIT_S,
        phases=Phases(),
    )
    assert limits_s == pytest.approx([60 * UNIT_S], abs=UNIT_S)
