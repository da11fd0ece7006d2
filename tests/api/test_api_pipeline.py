"""The pass runner trusts no planner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helpers.paths import fbir
from helpers.planners.graphs import chain
from helpers.planners.stub import Stub
from remat_compile import FBError, Plan, verifier
from remat_compile.api import plan_program
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import Diagnostic
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.planners.bounds.time_bounds import TimeBounds
from remat_compile.planners.contract import Feasible, Infeasible, TimedOut
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.registry import parse_planner
from remat_compile.plans import prove as _prove
from remat_compile.plans import run_planner as _run_planner
from remat_compile.plans.budget import Baseline, parse_budget
from remat_compile.plans.files.files import text_of
from remat_compile.plans.prove import Maker, ProofRequest, by_tool, in_file, proven_program
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Attempt, Phases, Planned, run_planner
from remat_compile.verifier import Disagreement, ProvenPlan, Refuted, Undecided, Verdict

TEXT = fbir("api/texts/pipeline")


@pytest.fixture
def program() -> Program:
    return parse_program(TEXT)


def store_all(program: Program) -> Schedule:
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    return Schedule("plan", "fake", steps)


def fake(answer: Callable[[Program], object]) -> Any:
    """A planner that answers with whatever `answer` gives."""

    @dataclass(frozen=True)
    class Fake(Stub):
        name: ClassVar[str] = "fake"

        def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
            return answer(program)

    return Fake()


def attempt(program: Program, answer: Callable[[Program], object], **options: object) -> Plan:
    return plan_program(program, PlanRequest(fake(answer), **options), Phases())  # type: ignore[arg-type]


def refusal(program: Program, answer: Callable[[Program], object], **options: object) -> FBError:
    with pytest.raises(FBError) as caught:
        attempt(program, answer, **options)
    assert not caught.value.usage
    return caught.value


def test_a_valid_plan_is_proven(program: Program) -> None:
    made = attempt(program, lambda p: Feasible(store_all(p), 4000, 3000))
    assert made.proven is not None
    assert made.program.proven == (made.proven,)
    assert made.proven.device_bytes >= made.peak_bytes
    assert made.lower_bound_s == 3e-6
    assert made.time_s == 4e-6
    assert {"plan", "verify"} <= made.phase_s.keys()


def test_a_planner_that_raises_is_named(program: Program) -> None:
    error = refusal(program, lambda p: p.graph.cnode["nix"])
    assert [d.code for d in error.diagnostics] == ["FB0460"]
    assert "planner fake" in str(error)
    assert "KeyError: 'nix'" in str(error)
    assert "test_api_pipeline.py" in str(error)


def test_a_planner_that_hangs_is_named(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run_planner, "GRACE_S", 0.05)
    goes_on = threading.Event()
    error = refusal(program, lambda p: not goes_on.wait(60), time_limit_s=0.2)
    goes_on.set()  # until now it hung
    assert error.diagnostics[0].code == "FB0461"


def test_an_invalid_plan_is_shown_on_its_text(program: Program) -> None:
    def without_first(p: Program) -> Feasible:
        good = store_all(p)
        return Feasible(Schedule("plan", "fake", good.steps[1:]), 1, None)

    error = refusal(program, without_first)
    assert [d.code for d in error.diagnostics][:2] == ["FB0462", "FB0301"]
    span = error.diagnostics[1].span
    assert span is not None
    assert span.file == "<plan of fake>"
    text = text_of(span.file)
    assert text is not None
    assert text.splitlines()[span.line - 1].strip() == "F2"


def test_a_plan_over_the_budget_is_refused(program: Program) -> None:
    answer = lambda p: Feasible(store_all(p), 1, None)  # noqa: E731
    error = refusal(program, answer, budget=parse_budget(150))
    assert error.diagnostics[0].code == "FB0463"


def test_what_is_no_result_is_refused(program: Program) -> None:
    for answer in (None, Schedule("plan", "fake", (Compute("F1"),))):
        error = refusal(program, lambda p, a=answer: a)  # type: ignore[misc]
        assert error.diagnostics[0].code == "FB0464"


def test_out_of_time(program: Program) -> None:
    error = refusal(program, lambda p: TimedOut(None, 0, None), budget=parse_budget("1B"))
    assert error.diagnostics[0].code == "FB0465"
    assert "planner fake" in str(error)
    assert "dtr{rounds=0} found no plan under the budget of 1 bytes" in str(error)
    assert attempt(program, lambda p: TimedOut(store_all(p), 1, None)).planner == "fake"


def test_out_of_time_the_fallback_stands_in(program: Program) -> None:
    made = attempt(program, lambda p: TimedOut(None, 0, None))
    assert made.proven is not None
    assert made.planner == "dtr{rounds=0}"
    assert [w.code for w in made.warnings] == ["FB0465"]
    assert "planner fake" in made.warnings[0].message


@pytest.mark.parametrize("planner", ["auto", "dtr", "periodic", "chen"])
def test_a_time_limit_of_zero_still_gives_a_plan(planner: str) -> None:
    program = chain(12)
    budget = parse_budget("60%", "activation")
    options = PlanRequest(parse_planner(planner), budget, time_limit_s=0.0)
    made = plan_program(program, options, Phases())
    assert made.proven is not None


def test_infeasible(program: Program) -> None:
    why = Diagnostic("FB0407", "B holds %h and %dy", hint="x")
    answer = lambda p: Infeasible(Budget(400), 320, why)  # noqa: E731
    error = refusal(program, answer, budget=parse_budget("1B"))
    text = str(error)
    assert error.diagnostics[0].code == "FB0466"
    for part in ("400", "320", "B holds %h and %dy", 'give budget="400B"'):
        assert part in text


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Refuted((Diagnostic("FB0801", "no"),)), "FB0462"),
        (Undecided("out of time"), "FB0467"),
    ],
)
def test_nothing_unproven_leaves(
    program: Program, verdict: Verdict, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat_compile.verifier.verify", lambda *_, **__: verdict)
    answer = lambda p: Feasible(store_all(p), 1, None)  # noqa: E731
    error = refusal(program, answer)
    assert error.diagnostics[0].code == code
    assert "fake" in str(error)


DISAGREE = Disagreement((Diagnostic("FB0817", "the solver and the independent checker differ"),))


def test_a_fault_of_the_proof_is_not_blamed_on_the_planner(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat_compile.verifier.verify", lambda *_, **__: DISAGREE)
    error = refusal(program, lambda p: Feasible(store_all(p), 1, None))
    assert [d.code for d in error.diagnostics] == ["FB0817"]
    assert "invalid plan" not in str(error)
    options = PlanRequest(parse_planner("auto"), parse_budget("60%", "activation"), time_limit_s=2)
    with pytest.raises(FBError) as caught:
        plan_program(chain(8), options, Phases())
    assert {d.code for d in caught.value.diagnostics} == {"FB0817"}


@pytest.mark.parametrize("maker", [by_tool("pyomo"), in_file(store_all(chain(3)))])
def test_nor_on_a_tool_or_a_file(program: Program, maker: Maker) -> None:
    with pytest.raises(FBError) as caught:
        proven_program(program, store_all(program), DISAGREE, ProofRequest(), maker)
    assert [d.code for d in caught.value.diagnostics] == ["FB0817"]


def test_auto_goes_on_with_another_plan_and_says_where_the_proof_is_at_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = verifier.verify
    asked: list[Schedule] = []

    def verify(program: Program, schedule: Schedule, *args: Any, **options: Any) -> Verdict:
        asked.append(schedule)
        return DISAGREE if schedule == asked[0] else real(program, schedule, *args, **options)

    monkeypatch.setattr(verifier, "verify", verify)
    options = PlanRequest(parse_planner("auto"), parse_budget("60%", "activation"), time_limit_s=2)
    made = plan_program(chain(8), options, Phases())
    assert made.proven is not None
    assert made.planner != asked[0].planner
    assert [w.code for w in made.warnings] == ["FB0817"]


def test_a_loaded_plan_is_proven_before_it_is_saved(program: Program, tmp_path: Path) -> None:
    schedule = store_all(program)
    plan = Plan(program.with_schedule(schedule), schedule)
    assert isinstance(plan.verify(), ProvenPlan)
    plan.save(tmp_path / "plan.fbir")
    assert parse_program((tmp_path / "plan.fbir").read_text()).proven


def test_an_invalid_plan_is_never_saved_or_emitted(program: Program, tmp_path: Path) -> None:
    schedule = Schedule("plan", "by hand", store_all(program).steps[1:])
    plan = Plan(program.with_schedule(schedule), schedule)
    assert isinstance(plan.verify(), Refuted)
    for act in (lambda: plan.save(tmp_path / "plan.fbir"), plan.emit, plan.trusted):
        with pytest.raises(FBError) as caught:
            act()
        assert caught.value.diagnostics[0].code == "FB0714"
    assert list(tmp_path.iterdir()) == []


def test_a_proof_of_a_large_graph_may_take_longer_than_its_plan() -> None:
    small, large = (Attempt(chain(n), Dtr(), None, 5.0, Phases()) for n in (3, 4000))
    assert small.prover.time_limit_s == 60.0
    assert large.prover.time_limit_s == 0.02 * len(large.program.graph.cnodes) > 100.0


def test_a_draft_is_run_by_the_simulator_and_not_proven(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only made of what is proven in its place; one that is wrong is refused all the same."""
    asked: list[object] = []
    monkeypatch.setattr(_prove, "prove", lambda *_: asked.append(_))
    monkeypatch.setattr(TimeBounds, "lower_ns_for", lambda *_, **__: asked.append(_))

    def drafted(answer: Callable[[Program], object], budget: int) -> Planned:
        return run_planner(
            program,
            fake(answer),
            Budget(budget, "device"),
            Baseline.of(program),
            time_limit_s=60.0,
            phases=Phases(),
            is_draft=True,
        )

    schedule = store_all(program)
    made = drafted(lambda p: Feasible(schedule, 4000, 3000), 1000)
    assert (made.schedule, made.lower_bound_ns) == (schedule, None)
    assert made.program is program
    assert made.peak_bytes == simulate(program, schedule).peak_bytes
    assert asked == []
    cut = Schedule("plan", "fake", schedule.steps[1:])
    for wrong, budget, code in ((schedule, 150, "FB0463"), (cut, 1000, "FB0462")):
        with pytest.raises(FBError) as caught:
            drafted(lambda p, s=wrong: Feasible(s, 1, None), budget)  # type: ignore[misc]
        assert caught.value.diagnostics[0].code == code
    assert asked == []
