"""Planners in processes of their own: whatever they do, the caller lives and says who it was."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.clock import HANGS_S
from helpers.planners.graphs import chain, stochastic
from remat_compile import FBError
from remat_compile.api import plan_program
from remat_compile.ir.diagnostics import Diagnostic, Note
from remat_compile.ir.program import Budget
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.planners import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    Planner,
    PlanResult,
    TimedOut,
    parse_planner,
)
from remat_compile.planners.baselines.periodic import Periodic
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.isolation.crew import is_foreign, is_portable, run_planner_apart
from remat_compile.planners.isolation.endings import (
    Answered,
    Ending,
    Failed,
    NoResult,
    Overdue,
    PlannerRefused,
    Unloadable,
    decode,
    decode_ending,
    encode,
    run_here,
)
from remat_compile.plans.budget import parse_budget
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Phases

PLUGIN = '''
import os, re, signal, subprocess, sys, time
from dataclasses import dataclass
from typing import ClassVar
from remat_compile.planners.kit import *

@dataclass(frozen=True)
class Bad:
    """Does what `how` says."""
    name: ClassVar[str] = "bad"
    how: str = "raise"
    file: str = ""

    def plan(self, program, budget, *, time_limit_s=60.0, progress=None):
        print("noise on standard output", flush=True)
        task = Task.of(program, budget, "bad")
        good = task.schedule(task.instance.capture)
        match self.how:
            case "raise":
                raise KeyError("nix")
            case "exit":
                os._exit(7)
            case "SystemExit":
                raise SystemExit(3)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                open(self.file, "w").write(f"{os.getpid()} {child.pid}")
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
            case "hog":
                open(self.file, "w").write(str(os.getpid()))
                re.match("(a+)+$", "a" * 60 + "b")
            case "none":
                return None
            case "text":
                return Feasible("F1 F2", 1, None)
            case "odd steps":
                return Feasible(Schedule("plan", "bad", ("F1",)), 1, None)
            case "odd time":
                return Feasible(good, "soon", None)
            case "invalid":
                return Feasible(Schedule("plan", "bad", good.steps[1:]), 1, None)
            case "unknown":
                return Feasible(Schedule("plan", "bad", (Compute("nix"),)), 1, None)
            case "strange name":
                return Feasible(Schedule('a"} b', "x\\ny", good.steps), 1, None)
            case "over":
                return Feasible(good, 1, None)
            case "bound":
                return Feasible(good, 1, 10**18)
            case "late":
                return TimedOut(None, 0, None)
            case "refuse":
                return task.infeasible(None)
'''


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class of a plug-in that misbehaves as told."""
    (tmp_path / "bad_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("bad_plugin", None)
    import bad_plugin  # type: ignore[import-not-found]

    yield bad_plugin.Bad
    sys.modules.pop("bad_plugin", None)


def refusal(planner: Planner, time_limit_s: float = 30.0, budget: str = "70%") -> FBError:
    options = PlanRequest(planner, parse_budget(budget, "activation"), time_limit_s=time_limit_s)
    with pytest.raises(FBError) as caught:
        plan_program(chain(6), options, Phases())
    return caught.value


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("raise", "FB0460", "KeyError: 'nix'"),
        ("exit", "FB0460", "ended without an answer (exit code 7)"),
        ("SystemExit", "FB0460", "SystemExit: 3"),
        ("crash", "FB0460", "ended without an answer (SIGSEGV)"),
        ("none", "FB0464", "NoneType, which is not a result"),
        ("text", "FB0464", "a str as schedule"),
        ("odd steps", "FB0464", "a schedule with the step 'F1'"),
        ("odd time", "FB0464", "'soon' where a number is wanted"),
        ("invalid", "FB0462", "reads %x1"),
        ("unknown", "FB0462", "nix"),
        ("strange name", "FB0463", "for a budget of"),
        ("over", "FB0463", "for a budget of"),
        ("refuse", "FB0466", "finds no plan within"),
    ],
)
def test_what_a_plugin_does_wrong_is_said_with_its_name(
    bad: Any, how: str, code: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    error = refusal(bad(how))
    assert error.diagnostics[0].code == code
    assert (
        f"bad{{how={how}}}" in str(error) or f'bad{{how="{how}"}}' in str(error) or how == "raise"
    )
    assert "planner bad" in str(error)
    assert words in str(error)
    assert capfd.readouterr().out == ""


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def gone(pid: int) -> bool:
    """Whether no process of that number runs any more (one that nobody reaped counts)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@needs_proc
def test_a_plugin_that_hangs_is_killed_with_its_children(
    bad: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat_compile.plans.run_planner.GRACE_S", 3.0)
    note = tmp_path / "pids"
    error = refusal(bad("hang", str(note)), time_limit_s=0.5)
    assert error.diagnostics[0].code == "FB0461"
    assert "planner bad" in str(error)
    assert_gone([int(word) for word in note.read_text().split()], HANGS_S)


ORPHAN = """
import os, sys, time
sys.path[:] = {path!r}
from bad_plugin import Bad
from helpers.planners.graphs import chain
from remat_compile.planners.isolation import crew
crew.START_S = {start_s}
runs = crew.Crew(chain(4), None, print)
runs.start(Bad({how!r}, {note!r}), "", 0.5, 3.0, in_process=True)
while not os.path.exists({note!r}): time.sleep(0.05)
time.sleep(0.2)
os._exit(0)
"""


def orphans(how: str, note: Path, start_s: float) -> list[int]:
    """Processes whose grandparent has ended while the planner was at work."""
    code = ORPHAN.format(path=sys.path, how=how, note=str(note), start_s=start_s)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANGS_S)
    return [int(word) for word in note.read_text().split()]


def assert_gone(pids: list[int], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, pids))


@needs_proc
def test_a_worker_ends_with_its_children_when_its_parent_is_gone(bad: Any, tmp_path: Path) -> None:
    pids = orphans("hang", tmp_path / "pids", start_s=600.0)
    assert len(pids) == 2
    assert_gone(pids, HANGS_S)


@needs_proc
@pytest.mark.slow
def test_a_worker_ends_even_where_a_planner_holds_the_interpreter(bad: Any, tmp_path: Path) -> None:
    assert_gone(orphans("hog", tmp_path / "pids", start_s=10.0), 40)


def test_a_wrong_bound_is_not_shown(bad: Any) -> None:
    made = plan_program(chain(6), PlanRequest(bad("bound")), Phases())
    assert made.proven is not None
    assert made.lower_bound_s is None


def test_when_a_plugin_runs_out_of_time_the_fallback_stands_in(bad: Any) -> None:
    budget = parse_budget("70%", "activation")
    made = plan_program(chain(6), PlanRequest(bad("late"), budget), Phases())
    assert made.planner == "dtr{rounds=0}"
    assert "planner bad" in made.warnings[0].message


def test_who_runs_where(bad: Any) -> None:
    assert is_foreign(bad())
    assert is_portable(bad())
    assert not is_foreign(Dtr())
    auto = parse_planner("auto{planners=[dtr, chen]}")
    assert not is_foreign(auto)
    assert is_foreign(replace(auto, planners=(Dtr(), bad())))  # type: ignore[type-var]


def test_a_process_gives_the_same_answer() -> None:
    cases = (
        (chain(9), Budget(700, "activation"), Dtr(rounds=3)),
        (stochastic(), Budget(1, "activation"), Dtr(rounds=3)),
        (stochastic(), None, Periodic(3)),
    )
    for program, budget, planner in cases:
        here = planner.plan(program, budget)
        there = run_planner_apart(
            planner,
            program,
            budget,
            time_limit_s=HANGS_S,
            patience_s=HANGS_S,
            progress=None,
            in_process=True,
        )
        assert there == Answered(here)


STEPS = st.builds(Compute, st.sampled_from(["F1", "B12"]), st.booleans()) | st.builds(
    Free, st.sampled_from(["x", "a_1"])
)
SCHEDULES = st.builds(
    Schedule, st.just("plan"), st.sampled_from(["dtr", 'x{a="q \\\\ "}']), st.tuples(STEPS, STEPS)
)
COUNTS = st.integers(0, 10**15)
BUDGETS = st.builds(Budget, COUNTS, st.sampled_from(["device", "activation"]))
REASONS = st.builds(
    Diagnostic, st.just("FB0407"), st.text(), notes=st.tuples(st.builds(Note, st.text()))
)
RESULTS = st.one_of(
    st.builds(Optimal, SCHEDULES, COUNTS, COUNTS),
    st.builds(Feasible, SCHEDULES, COUNTS, st.none() | COUNTS),
    st.builds(TimedOut, st.none() | SCHEDULES, COUNTS, st.none() | COUNTS),
    st.builds(Infeasible, st.none() | BUDGETS, COUNTS, REASONS),
    st.builds(NotApplicable, REASONS),
)


RESULT = Feasible(Schedule("plan", "dtr", (Compute("F1"),)), 5, 4)


@settings(max_examples=60)
@given(RESULTS)
def test_results_travel_unchanged(result: PlanResult) -> None:
    assert decode(encode(result)) == result


ENDINGS = st.one_of(
    st.builds(Answered, RESULTS),
    st.builds(PlannerRefused, st.tuples(REASONS), st.booleans()),
    st.builds(Failed, st.text(), st.text()),
    st.builds(NoResult, st.text()),
    st.builds(Unloadable, st.text()),
    st.just(Overdue()),
)


@settings(max_examples=40)
@given(ENDINGS)
def test_endings_travel_unchanged(ending: Ending) -> None:
    assert decode_ending(json.loads(json.dumps(encode(ending)))) == ending


def test_what_is_no_ending_is_no_result() -> None:
    overs = [None, 7, {"is": "nix"}, {"is": "Answered", "result": 3}, encode(RESULT)]
    assert {type(decode_ending(data)) for data in overs} == {NoResult}


@pytest.mark.parametrize("data", [None, {}, [], "x", {"is": "Optimal"}, {"is": "Feasible", "x": 1}])
def test_what_is_no_result_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="unreadable"):
        decode(data)


def test_numbers_of_numpy_travel() -> None:
    import numpy as np

    result: Any = Feasible(RESULT.schedule, np.int64(5), np.int64(4))
    numpy: Any = SimpleNamespace(plan=lambda *_, **__: result)
    ending = run_here(numpy, chain(3), None, 1.0, None)
    assert ending == Answered(RESULT)
    assert decode_ending(json.loads(json.dumps(encode(ending)))) == ending
