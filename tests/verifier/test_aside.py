"""Half of a long proof in a process of its own: the same verdict as without."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.verifier.step_text import GRAPH, PLAN, schedule
from remat_compile.ir.diagnostics import Diagnostic
from remat_compile.ir.program import Budget
from remat_compile.verifier import (
    Disagreement,
    ProvenPlan,
    Refuted,
    Undecided,
    agreement,
    prove,
    verify,
    verify_with_scripts,
)
from remat_compile.verifier.check import Refused as RefusedByChecker
from remat_compile.verifier.check import check
from remat_compile.verifier.inquiry import Record
from remat_compile.verifier.obligations import aside

Started = list["subprocess.Popen[bytes]"]

RANGING = GRAPH.replace("target", "sym b in [1, 9] = 8 of arg 0 dim 0\ntarget", 1).replace(
    "%x : input f32[8] bytes 32", "%x : input f32[b] bytes 4*b"
)

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


def test_the_checker_reads_the_plan_meanwhile(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the answer of the process is waited for; its no counts, and it is not asked again."""
    asked: list[str] = []

    def refuse(text: str, name: str) -> RefusedByChecker:
        asked.append(text)
        assert started[0].stdout is not None
        assert not started[0].stdout.closed
        return RefusedByChecker("a word", 3)

    def again(*_: object) -> None:
        raise AssertionError("asked twice")

    program, plan = schedule(PLAN, GRAPH)
    monkeypatch.setattr(prove, "check", refuse)
    monkeypatch.setattr(agreement, "check", again)
    verdict = verify(program, plan)
    assert isinstance(verdict, Disagreement)
    assert [d.code for d in verdict.diagnostics] == ["FB0817"]
    assert "a word (line 3 of the text)" in verdict.diagnostics[0].notes[1].message
    assert asked == [agreement.written(program, plan)]
    assert len(started) == 1


def test_where_sizes_range_the_checker_is_asked_about_the_ranges(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is after the bounds are known."""
    ranges: list[object] = []

    def noted(*arguments: Any) -> Any:
        ranges.append(arguments[3])
        return check(*arguments)

    program, plan = schedule(PLAN, RANGING)
    monkeypatch.setattr(agreement, "check", noted)
    assert isinstance(verify(program, plan), ProvenPlan)
    assert ranges == [{"b": (1, 9)}]
    assert len(started) == 1


def _saying(verdict: str, record: str) -> str:
    """A process that answers this, whatever it is asked."""
    return (
        "import pickle, sys; from remat_compile.verifier.inquiry import Record; "
        "from remat_compile.verifier.verdict import Undecided; "
        f"pickle.dump(({verdict}, {record}), sys.stdout.buffer)"
    )


def test_solvers_that_differ_there_have_differed(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though here they agree when they are asked again."""
    record = "Record(disagreements=['script 1 is sat'])"
    monkeypatch.setattr(aside, "_START", _saying("Undecided('script 1 is sat')", record))
    verdict = verify(*schedule(PLAN, GRAPH))
    assert isinstance(verdict, Undecided)
    assert [d.code for d in verdict.diagnostics] == ["FB0872"]
    assert len(started) == 1


def test_what_is_proven_there_stays_proven_if_there_is_no_time_to_tell_of_it_here(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds at the sample only is told with places, so it is proven a second time."""
    program, plan = schedule(PLAN, GRAPH)
    proven = verify(program, plan)
    assert isinstance(proven, ProvenPlan)
    limited = replace(proven, beyond=(Diagnostic("FB0820", "above"),))
    monkeypatch.setattr(aside.pickle, "load", lambda _: (limited, Record()))
    monkeypatch.setattr(aside.PlanProof, "sizes", lambda *_: Undecided("no time"))
    assert verify(program, plan) == limited
    assert len(started) == 2


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "print('nonsense')", "pass"])
def test_what_a_process_that_dies_was_to_prove_is_proven_here(
    code: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "_START", code)
    assert isinstance(verify(*schedule(PLAN, GRAPH)), ProvenPlan)
    assert len(started) == 1


def test_a_process_that_is_gone_before_it_is_asked(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = aside._send

    def late(process: subprocess.Popen[bytes], job: aside.SizesJob) -> None:
        process.wait()
        send(process, job)

    monkeypatch.setattr(aside, "_START", "")
    monkeypatch.setattr(aside, "_send", late)
    assert isinstance(verify(*schedule(PLAN, GRAPH)), ProvenPlan)
    assert len(started) == 1


def test_without_a_process_it_is_proven_here(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert isinstance(verify(*schedule(PLAN, GRAPH)), ProvenPlan)
    assert started == []


def test_a_system_that_does_not_say_which_processors(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert isinstance(verify(*schedule(PLAN, GRAPH)), ProvenPlan)
    assert len(started) == 1


def test_no_module_of_the_working_folder_runs(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's folder, with a long plan and a `json.py` in it."""
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    program, plan = schedule(PLAN, GRAPH)
    monkeypatch.chdir(tmp_path)
    assert isinstance(verify(program, plan), ProvenPlan)
    assert len(started) == 1
    assert not (tmp_path / "ran").exists()


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
