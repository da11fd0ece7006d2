"""Half of a long proof in a process of its own: the same verdict as without."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from helpers.verifier.step_text import GRAPH, PLAN, schedule
from remat_compile.ir.program import Budget
from remat_compile.verifier import ProvenPlan, Refuted, aside, verify, verify_with_scripts

Started = list["subprocess.Popen[bytes]"]

PLANS: dict[str, tuple[str, tuple[Budget, ...], type]] = {
    "proven": (PLAN, (), ProvenPlan),
    "within a budget": (PLAN, (Budget(5000),), ProvenPlan),
    "above a budget": (PLAN, (Budget(10),), Refuted),
    "wrong steps": (PLAN.replace("free %d\n", "free %d\nfree %d\n", 1), (), Refuted),
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Every plan is long; these are the processes that were started."""
    monkeypatch.setattr(aside, "LONG", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    processes: Started = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(aside.subprocess, "Popen", Noted)
    return processes


@pytest.mark.parametrize("name", PLANS)
def test_the_verdict_is_that_of_one_process(
    name: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, budgets, kind = PLANS[name]
    program, plan = schedule(text, GRAPH)
    verdict, scripts = verify_with_scripts(program, plan, budgets)
    assert isinstance(verdict, kind)
    assert len(started) == 1
    assert started[0].returncode is not None
    monkeypatch.setattr(aside, "LONG", 10**9)
    alone, asked = verify_with_scripts(program, plan, budgets)
    assert len(started) == 1
    assert verdict == alone
    assert {s.name: s.text for s in scripts} == {s.name: s.text for s in asked}


def test_the_sizes_are_proven_there(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("proven in this process")

    monkeypatch.setattr(aside.PlanProof, "sizes", refuse)
    assert isinstance(verify(*schedule(PLAN, GRAPH)), ProvenPlan)


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "print('nonsense')", "pass"])
def test_what_a_process_that_dies_was_to_prove_is_proven_here(
    code: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "_START", code)
    assert isinstance(verify(*schedule(PLAN, GRAPH)), ProvenPlan)
    assert len(started) == 1


def test_a_failure_leaves_no_process(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(aside.PlanProof, "steps", interrupted)
    monkeypatch.setattr(aside, "_START", "import time; time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        verify(*schedule(PLAN, GRAPH))
    assert started[0].returncode is not None


def test_short_plans_and_single_processors_start_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, plan = schedule(PLAN, GRAPH)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert isinstance(verify(program, plan), ProvenPlan)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(aside, "LONG", len(plan.steps) + 1)
    assert isinstance(verify(replace(program), plan), ProvenPlan)
    assert started == []
