"""`auto`: a portfolio that keeps its limit, its word, and what it has when it is stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helpers.clock import HANGS_S, skips
from helpers.planners.graphs import chain, random_dag, transformer, unet
from helpers.planners.plugin import install_module
from helpers.planners.stop import stop_at
from remat_compile.api import load
from remat_compile.ir.analysis.liveness import lower_bound_bytes
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import (
    Feasible,
    Infeasible,
    Optimal,
    PlannerInfo,
    PlanResult,
    TimedOut,
    format_planner,
    parse_planner,
    registry,
)
from remat_compile.planners.auto import Auto
from remat_compile.planners.baselines.store_all import StoreAll
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.portfolio import members as _portfolio
from remat_compile.planners.portfolio.race import PlanRace, RacePlan
from remat_compile.verifier import ProvenPlan, verify

FAR = 10**18
"""Steps for which every search is worth its time."""

PLUGIN = '''
import os, time
from dataclasses import dataclass
from typing import ClassVar
from remat_compile.planners.kit import *

@dataclass(frozen=True)
class Odd:
    """Does what `how` says."""
    name: ClassVar[str] = "odd"
    how: str = "raise"

    def plan(self, program, budget, *, time_limit_s=60.0, progress=None):
        if progress is not None:
            progress("odd: at work")
        task = Task.of(program, budget, "odd")
        good = task.schedule(task.instance.capture)
        match self.how:
            case "raise":
                raise KeyError("nix")
            case "hang":
                time.sleep(600)
            case "crash":
                os.abort()
            case "none":
                return None
            case "invalid":
                return Feasible(Schedule("plan", "odd", good.steps[1:]), 1, 1)
            case "over":
                return Feasible(good, 1, 1)
'''
WORSE = ("raise", "crash", "none", "invalid", "over")


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "odd_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("odd_plugin", None)
    import odd_plugin  # type: ignore[import-not-found]

    yield odd_plugin.Odd
    sys.modules.pop("odd_plugin", None)


def at(program: Program, share: float) -> Budget:
    """A budget between what any plan needs and what the unplanned step takes."""
    refused = StoreAll().plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    low, high = lower_bound_bytes(program, "activation")[0], refused.min_budget.bytes
    return Budget(int(low + share * (high - low)), "activation")


def schedule_of(result: PlanResult) -> Any:
    assert isinstance(result, Feasible | Optimal)
    return result.schedule


@pytest.mark.parametrize(
    "make", [pytest.param(unet, marks=pytest.mark.slow), lambda: random_dag(7)]
)
def test_the_best_of_all_is_taken_and_its_bound_is_told(make: Any) -> None:
    program = make()
    budget = at(program, 0.5)
    said: list[str] = []
    auto = Auto(horizon=FAR)
    best = auto.plan(program, budget, time_limit_s=HANGS_S, progress=said.append)
    assert isinstance(best, Optimal | Feasible)
    for name in ("store-all", "chen", "periodic", "dtr"):
        other = parse_planner(name).plan(program, budget)
        if isinstance(other, Optimal | Feasible):
            assert best.time_ns <= other.time_ns
    trace = simulate(program, best.schedule)
    assert trace.activation_peak_bytes <= budget.bytes
    assert trace.time_ns == best.time_ns
    assert best.lower_bound_ns is not None
    assert best.lower_bound_ns <= best.time_ns
    assert isinstance(verify(program, best.schedule, (budget,)), ProvenPlan)
    assert any("leads" in line and "at most" in line for line in said)


def test_where_nothing_needs_to_run_again_it_answers_at_once() -> None:
    said: list[str] = []
    program = transformer(4)
    result = Auto().plan(program, at(program, 1.0), time_limit_s=2 * HANGS_S, progress=said.append)
    assert isinstance(result, Optimal)
    (line,) = said  # nobody else was asked
    assert line.startswith("auto: store-all leads")


def test_below_the_proven_floor_it_refuses_at_once() -> None:
    program = transformer(4)
    floor = lower_bound_bytes(program, "activation")[0]
    said: list[str] = []
    short = Budget(floor - 1, "activation")
    result = Auto().plan(program, short, time_limit_s=2 * HANGS_S, progress=said.append)
    assert isinstance(result, Infeasible)
    assert not any(begun(line) for line in said)
    assert result.floor_bytes == floor
    assert result.min_budget is not None
    assert any("no plan can exist" in line for line in said)


@pytest.mark.parametrize(("horizon", "is_worth_it"), [(1, False), (FAR, True)])
def test_a_search_begins_where_so_many_steps_can_gain_by_it(
    horizon: int, is_worth_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat_compile.planners.auto.LEAST_S", 0.0)
    program, said = chain(9), list[str]()
    auto = Auto(horizon=horizon)
    result = auto.plan(program, at(program, 0.2), time_limit_s=HANGS_S, progress=said.append)
    assert isinstance(result, Optimal | Feasible)
    assert any(map(begun, said)) == is_worth_it


@pytest.mark.parametrize(("bound_ns", "is_settled"), [(996, True), (994, False)])
def test_a_race_ends_within_half_a_percent_of_its_bound(bound_ns: int, is_settled: bool) -> None:
    program = chain(3)
    race = PlanRace(program, None, 0, lambda _: None)
    race.entries.append(RacePlan(1000, 0, schedule_of(StoreAll().plan(program, None))))
    race.raise_bound("test", bound_ns)
    assert race.settled == is_settled
    assert race.to_gain_ns == 1000 - bound_ns


def begun(line: str) -> bool:
    """Whether `auto` says that a member begins in a process."""
    return re.match(r"auto: .*, for \d+ s$", line) is not None


def test_with_no_time_only_the_quickest_answers() -> None:
    program = transformer(6)
    budget = at(program, 0.4)
    said: list[str] = []
    result = Auto().plan(program, budget, time_limit_s=0.0, progress=said.append)
    assert simulate(program, schedule_of(result)).activation_peak_bytes <= budget.bytes
    assert schedule_of(result).planner == "dtr{rounds=0}"
    assert not any(begun(line) for line in said)


def test_no_quick_member_begins_past_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 400 of 1000 units."""
    ran: list[int] = []

    @dataclass(frozen=True)
    class Slow:
        number: int
        name: ClassVar[str] = "slow"

        def plan(self, program: Program, budget: Budget | None, **_: object) -> PlanResult:
            ran.append(self.number)
            skip(400 * HANGS_S)
            return Dtr(rounds=0).plan(program, budget)

    program, skip = chain(9), skips(monkeypatch)
    monkeypatch.setattr("remat_compile.planners.auto.QUICK_GRACE_S", 2000 * HANGS_S)
    auto = Auto(tuple(map(Slow, range(6))), horizon=FAR)
    result = auto.plan(program, at(program, 0.2), time_limit_s=1000 * HANGS_S)
    assert schedule_of(result).planner == "slow{number=0}"
    assert ran == [0, 1, 2]


def test_no_member_begins_past_the_time_limit_and_who_works_is_left(
    odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock passes the limit as soon as the first works, who would sleep for ten minutes."""
    program, skip = chain(9), skips(monkeypatch)
    said: list[str] = []

    def past(line: str) -> None:
        said.append(line)
        if begun(line):
            skip(20 * HANGS_S)

    @dataclass(frozen=True)
    class Quick:
        name: ClassVar[str] = "quick"

        def plan(self, program: Program, budget: Budget | None, **_: object) -> PlanResult:
            return Dtr(rounds=0).plan(program, budget)

    auto = Auto((Quick(), odd("hang"), Dtr(rounds=0), StoreAll()), horizon=FAR)
    result = auto.plan(program, at(program, 0.2), time_limit_s=10 * HANGS_S, progress=past)
    assert schedule_of(result).planner == "quick"
    assert [line.split(",")[0] for line in said if begun(line)] == ["auto: odd{how=hang}"]


def test_members_that_fail_are_named_and_stop_nobody(odd: Any) -> None:
    program = chain(9)
    budget = at(program, 0.2)  # no bound meets what is planned, which would end the race early
    said: list[str] = []
    auto = Auto((*(odd(how) for how in WORSE), Dtr(rounds=0)), horizon=FAR)
    result = auto.plan(program, budget, time_limit_s=4 * HANGS_S, progress=said.append)
    assert schedule_of(result).planner == "dtr{rounds=0}"
    text = "\n".join(said)
    for how in WORSE:
        name = "odd" if how == "raise" else format_planner(odd(how))
        assert any(name in line and ("left out" in line) for line in said), (how, text)
    assert "KeyError: 'nix'" in text
    assert "SIGABRT" in text


def test_a_member_that_hangs_is_ended(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for a slow machine to start them; of it, two seconds are waited for who hangs.
    limit_s, waited_s = 60.0, 2.0
    monkeypatch.setattr("remat_compile.planners.auto.GRACE_S", waited_s - limit_s / 3)
    program = chain(9)
    said: list[str] = []
    # A third of the time for each.
    auto = Auto((odd("hang"), Dtr(rounds=0), StoreAll()), horizon=FAR)
    # No bound meets what is planned there, which would end the race early.
    result = auto.plan(program, at(program, 0.2), time_limit_s=limit_s, progress=said.append)
    assert schedule_of(result).planner == "dtr{rounds=0}"
    assert any("odd{how=hang} did not come back" in line for line in said), said


def test_a_registered_plugin_takes_part(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    more = PlannerInfo("odd", "odd_plugin:Odd", "odd-plugin")
    known = registry.registered()
    monkeypatch.setattr(registry, "registered", lambda: (*known, more))
    monkeypatch.setattr(_portfolio, "_ON_SMALL", ())
    program = chain(9)
    said: list[str] = []
    budget = at(program, 0.2)  # no bound meets what is planned, which would end the race early
    progress = stop_at("auto: odd failed", said)
    auto = Auto(horizon=FAR)
    result = auto.plan(program, budget, time_limit_s=4 * HANGS_S, progress=progress)
    assert isinstance(result, Feasible)
    assert any(line.startswith("auto: odd failed") for line in said)


def test_a_bound_below_a_known_plan_is_not_believed() -> None:
    program = chain(9)
    budget = at(program, 0.4)
    good = Dtr().plan(program, budget)
    assert isinstance(good, Feasible)
    said: list[str] = []
    race = PlanRace(program, budget, 10, said.append)
    race.take("mine", good)
    wrong = Feasible(good.schedule, good.time_ns, good.time_ns + 1)
    race.take("theirs", wrong, trusted=False)
    assert race.bound_ns < good.time_ns
    race.take("ours", wrong)
    assert race.bound_ns <= good.time_ns
    assert any("bound of ours" in line for line in said)


def test_who_has_the_last_word() -> None:
    program = chain(8)
    budget = at(program, 0.35)  # more than one plan is near the bound
    asked: list[str] = []

    def refuse(schedule: Any) -> bool:
        asked.append(schedule.planner)
        return False

    result = Auto().plan(program, budget, time_limit_s=HANGS_S, accept=refuse)
    assert isinstance(result, TimedOut | Infeasible)
    assert len(asked) >= 2


SLOW = """
import time
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Slow:
    name: ClassVar[str] = "slow"

    def plan(self, program, budget, *, time_limit_s=60.0, progress=None):
        progress("slow: asleep")
        time.sleep(600)
"""


def test_ctrl_c_gives_the_best_so_far(tmp_path: Path) -> None:
    """A real process, a real signal: the plan is proven and written."""
    program = transformer(2)
    (tmp_path / "graph.fbir").write_text(format_program(program))
    environment = install_module(tmp_path, "slow_plugin", SLOW, "slow = slow_plugin:Slow")
    code = (
        # A process of a shell's background job is born with the signal ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from remat_compile.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    plan = tmp_path / "plan.fbir"
    words = [str(tmp_path / "graph.fbir"), "-o", str(plan)]
    words += ["--activation-budget", f"{at(program, 0.4).bytes}B"]
    words += ["--planner", "auto{planners=[dtr{rounds=0}, slow]}", "--time-limit", "600"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if "slow: asleep" in seen and "auto: dtr{rounds=0} leads" in seen:
                break
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, said
    assert "auto: stopped early" in said
    assert f"wrote {plan}" in printed
    made = load(plan)
    assert made.planner == "dtr{rounds=0}"
    assert isinstance(made.verify(), ProvenPlan)


def test_ctrl_c_before_there_is_a_plan_is_an_interruption(odd: Any) -> None:
    program = chain(9)

    def interrupt(line: str) -> None:
        if "at work" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Auto((odd("hang"),), horizon=FAR).plan(
            program, at(program, 0.4), time_limit_s=HANGS_S, progress=interrupt
        )


@pytest.mark.parametrize(
    ("cnodes", "first"),
    [
        (60, "rk-checkmate"),
        (420, "rockmate"),
        (20_000, "rockmate"),
        (20_001, "hiremate"),
    ],
)
def test_who_promises_most_on_a_graph_of_that_size(cnodes: int, first: str) -> None:
    made = [member.planner.name for member in _portfolio.members(cnodes, lambda line: None)]
    assert made[0] == first
    assert Dtr() in _portfolio.quick_members(cnodes) or "dtr" in made
    assert cnodes <= 20_000 or made == ["hiremate", "dtr"]
