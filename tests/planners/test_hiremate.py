"""`hiremate`: plans of a hierarchy, whatever the graph, the time and the leaf solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.clock import HANGS_S, skips
from helpers.planners.graph_builder import Builder
from helpers.planners.graphs import (
    chain,
    encoder_decoder,
    random_dag,
    residual,
    stochastic,
    towers,
    transformer,
    unet,
)
from helpers.planners.matrix import check
from helpers.planners.mixed_steps import mixed_chain, mixed_dag, moe, two_towers
from helpers.slow import default_only
from remat_compile.ir.analysis.liveness import lower_bound_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import (
    Feasible,
    Infeasible,
    Optimal,
    PlanResult,
    TimedOut,
    format_planner,
    parse_planner,
)
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.eviction.search import Search
from remat_compile.planners.eviction.walk import Heuristic
from remat_compile.planners.hierarchy import effort as jobs
from remat_compile.planners.hierarchy.hiremate import Hiremate
from remat_compile.planners.instance import Instance, Order
from remat_compile.planners.isolation.endings import Answered
from remat_compile.planners.programs.answer import ProgramAnswer
from remat_compile.planners.workers.pool import LocalWorkers

QUICK = Hiremate(children=6, leaf=4, options=3, peaks=2, saves=2, processes=1)


def budget_of(program: Program, share: float) -> Budget:
    """A place between the least that `dtr` reaches and what the unplanned step takes."""
    instance = Instance.of(program, "activation")
    high = instance.peak(instance.capture)
    least = Dtr(rounds=0).plan(program, Budget(1, "activation"))
    assert isinstance(least, Infeasible)
    assert least.min_budget is not None
    low = least.min_budget.bytes
    return Budget(int(low + share * (high - low)), "activation")


def planned(planner: Any, program: Program, budget: Budget, limit_s: float = 60.0) -> PlanResult:
    result: PlanResult = planner.plan(program, budget, time_limit_s=limit_s)
    check(program, budget, result)
    return result


GRAPHS: dict[str, Callable[[], Program]] = {
    "chain": lambda: chain(12),
    "residual": lambda: residual(3),
    "stochastic": lambda: stochastic(4),
    "encoder-decoder": lambda: encoder_decoder(5),
    "unet": lambda: unet(5),
    "towers": lambda: towers((3, 4, 4)),
    "interleaved towers": lambda: two_towers(3),
    "experts": lambda: moe(2, 2),
    "nothing repeats": lambda: random_dag(3, nodes=12),
    "mixed": lambda: mixed_dag(11, 12),
}


@pytest.mark.parametrize("graph", default_only(GRAPHS, ["unet", "stochastic"]))
def test_plans_are_proven_and_no_slower_than_walks(graph: str) -> None:
    program = GRAPHS[graph]()
    for share in (0.3,):
        budget = budget_of(program, share)
        ours = planned(QUICK, program, budget)
        walks = Dtr(rounds=0).plan(program, budget)
        assert isinstance(ours, Feasible | Optimal)
        assert isinstance(walks, Feasible | Optimal)
        assert ours.time_ns <= walks.time_ns


@pytest.mark.slow
@settings(max_examples=4, derandomize=True)
@given(
    st.sampled_from([mixed_chain, mixed_dag]),
    st.integers(0, 10_000),
    st.sampled_from(["auto", "dominators", "intervals"]),
)
def test_any_partition_of_any_step(
    make: Callable[[int, int], Program], seed: int, kind: Any
) -> None:
    program = make(seed, 9)
    planner = Hiremate(4, 3, 2, 2, 2, partition=kind, processes=1)
    planned(planner, program, budget_of(program, 0.4))


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["encoder-decoder", "unet"])
def test_no_slower_than_the_best_of_the_others(graph: str) -> None:
    """1.02 times the optimum of the whole program, which is known for graphs of this size."""
    program = {"encoder-decoder": encoder_decoder, "unet": unet}[graph](4)
    for share in (0.5, 0.1):
        budget = budget_of(program, share)
        ours = planned(replace(QUICK, children=10), program, budget)
        best = parse_planner("rk-checkmate").plan(program, budget, time_limit_s=60.0)
        assert isinstance(ours, Feasible | Optimal)
        assert isinstance(best, Feasible | Optimal)
        assert ours.time_ns <= 1.02 * best.time_ns


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: residual(4), lambda: chain(14, seed=4)])
def test_no_slower_than_planners_of_chains(make: Callable[[], Program]) -> None:
    program = make()
    budget = budget_of(program, 0.3)
    ours = planned(QUICK, program, budget)
    assert isinstance(ours, Feasible | Optimal)
    for name in ("rotor", "rockmate{peaks=3, saves=3, processes=1}"):
        other = parse_planner(name).plan(program, budget, time_limit_s=20.0)
        if isinstance(other, Feasible | Optimal):
            assert ours.time_ns <= 1.01 * other.time_ns, name


def test_the_same_plan_again_with_other_processes() -> None:
    """Not the clock ends its programs."""
    program = encoder_decoder(4)
    budget = budget_of(program, 0.15)
    plans = [
        Hiremate(leaf=6, options=3, peaks=2, saves=2, processes=n).plan(
            program, budget, time_limit_s=200.0
        )
        for n in (1, 2)
    ]
    assert isinstance(plans[0], Feasible)
    assert isinstance(plans[1], Feasible)
    assert plans[0].schedule.steps == plans[1].schedule.steps


def test_what_it_tells() -> None:
    lines: list[str] = []
    program = moe(2, 2)
    QUICK.plan(program, budget_of(program, 0.2), progress=lines.append)
    assert any("levels" in line and "classes" in line for line in lines)
    assert any("of the time without budget" in line for line in lines)


def test_options_as_text() -> None:
    text = "hiremate{children=4, leaf=8, partition=intervals, solver=dtr{rounds=0}}"
    made = parse_planner(text)
    assert made == Hiremate(children=4, leaf=8, partition="intervals", solver=Dtr(rounds=0))
    assert format_planner(made) == text
    assert format_planner(parse_planner("hiremate{solver=rk-checkmate}")) == "hiremate"
    for wrong, code in (
        ("hiremate{children=1}", "FB0404"),
        ("hiremate{solver=hiremate}", "FB0404"),
        ("hiremate{partition=none}", "FB0404"),
    ):
        with pytest.raises(FBError) as refused:
            parse_planner(wrong)
        (diagnostic,) = refused.value.diagnostics
        assert diagnostic.code == code
        assert diagnostic.span is not None


@pytest.mark.parametrize("limit_s", [-1.0, 10 * HANGS_S])
def test_no_job_is_begun_past_the_limit(limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best so far, said so."""
    program = transformer(8)
    budget = budget_of(program, 0.3)
    skip, jobs_begun = skips(monkeypatch), list[object]()

    def past(line: str) -> None:
        if line.startswith("hiremate: walks"):
            skip(20 * HANGS_S)

    submit = LocalWorkers.submit

    def counted(self: LocalWorkers, fn: Any, *args: Any) -> Any:
        jobs_begun.append(args)
        return submit(self, fn, *args)

    monkeypatch.setattr(LocalWorkers, "submit", counted)
    result = Hiremate().plan(program, budget, time_limit_s=limit_s, progress=past)
    assert isinstance(result, TimedOut)
    assert result.schedule is not None
    check(program, budget, result)
    assert not jobs_begun


def test_below_the_floor() -> None:
    program = encoder_decoder(4)
    floor = lower_bound_bytes(program, "activation")[0]
    refused = planned(QUICK, program, Budget(floor - 1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    assert "held at step" in refused.why.notes[0].message
    assert isinstance(planned(QUICK, program, refused.min_budget), Feasible | Optimal)


def test_a_forward_in_pieces_that_never_meet() -> None:
    b = Builder("apart")
    ends: list[str] = []
    for k in range(3):
        b.input(f"x{k}_0", 50)
        for i in range(6):
            b.param(f"w{k}_{i}", 4, f"dw{k}_{i}")
            kind: Any = "output" if i == 5 else "act"
            b.op([f"x{k}_{i}", f"w{k}_{i}"], [(f"x{k}_{i + 1}", kind, 50)], time=10)
        ends.append(f"x{k}_6")
    b.loss(ends, [(f"d{k}_6", 50) for k in range(3)])
    for k in range(3):
        for i in reversed(range(6)):
            grads: list[Any] = [(f"dw{k}_{i}", "param_grad", 4)]
            grads += [(f"d{k}_{i}", "grad", 50)] if i else []
            b.op([f"x{k}_{i}", f"d{k}_{i + 1}"], grads, phase="bwd", time=20)
    program = b.program()
    assert isinstance(planned(QUICK, program, budget_of(program, 0.3)), Feasible | Optimal)


def test_no_forward_at_all() -> None:
    b = Builder("nothing")
    b.input("x", 10)
    b.param("w", 10, "dw")
    b.loss(["x"], [("dx", 10)])
    b.op(["dx", "w"], [("g", "grad", 100)], phase="bwd")
    b.op(["g"], [("dw", "param_grad", 10)], phase="bwd")
    program = b.program()
    assert isinstance(QUICK.plan(program, Budget(10**6, "device")), Optimal)
    assert isinstance(planned(QUICK, program, Budget(1, "activation")), Infeasible)


@dataclass(frozen=True)
class Broken:
    """A leaf solver of somebody else that does as it is told."""

    name: ClassVar[str] = "broken"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "nowhere"
    how: str = "fails"

    def plan(self, program: Program, budget: Budget | None, **_: Any) -> Any:
        if self.how == "fails":
            raise RuntimeError("out of luck")
        while self.how == "loops":
            sleep(0.01)
        if self.how == "answers nonsense":
            return 42
        good: Any = Dtr(rounds=0).plan(program, None)
        return Feasible(type(good.schedule)("plan", "broken", good.schedule.steps[2:]), 1, 1)


BROKEN = [
    ("fails", "failed: RuntimeError: out of luck"),
    ("loops", "did not come back"),
    ("answers nonsense", "returned int, which is not a result"),
    ("leaves out", "a plan that reads what it has not made"),
]


@pytest.mark.parametrize(
    ("how", "message"),
    default_only(BROKEN, [BROKEN[0], BROKEN[3]]),
)
def test_a_leaf_solver_that_does_not_do_its_work(
    how: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and the quick options of the class stay."""
    if how == "loops":
        monkeypatch.setattr(jobs, "LEAF_S", 0.2)
        monkeypatch.setattr(jobs, "_GRACE_S", 0.1)
    program = chain(5)
    lines: list[str] = []
    planner = Hiremate(4, leaf=3, options=2, peaks=2, saves=1, processes=2, solver=Broken(how))
    budget = budget_of(program, 0.3)
    result = planner.plan(program, budget, progress=lines.append)
    check(program, budget, result)
    assert isinstance(result, Feasible | Optimal)
    assert any("broken" in line and message in line for line in lines)


@pytest.mark.parametrize("planner", [None, Dtr(rounds=0)])
def test_a_job_asks_nothing_past_its_limit(
    planner: Dtr | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program of a leaf, and each plan of a leaf solver, takes 40 of 100 units."""
    part = Instance.of(chain(9), "activation")
    unit_s, skip, limits_s = 10 * HANGS_S, skips(monkeypatch), list[float]()
    monkeypatch.setattr(jobs, "LEAF_S", 1000 * unit_s)

    def solved(
        _: object, peak: int, saved: int, solver: object, limit_s: float, *__: object
    ) -> Any:
        limits_s.append(limit_s)
        skip(40 * unit_s)
        return ProgramAnswer("unknown", None, 0, 0)

    def planned(*given: Any, time_limit_s: float, **_: object) -> Answered:
        limits_s.append(time_limit_s)
        skip(40 * unit_s)
        inner, program, budget = given
        return Answered(inner.plan(program, budget))

    monkeypatch.setattr(jobs, "solve_whole", solved)
    monkeypatch.setattr(jobs, "run_planner_apart", planned)
    job: Any = jobs.GridJob(part, None, 4, 4)
    if planner is not None:
        job = jobs.PlannerJob(part, planner, 6)
    answer = job.run(None, 100 * unit_s)
    assert answer.late
    assert limits_s == pytest.approx([n * unit_s for n in (100, 60, 20)], abs=unit_s)


@pytest.mark.parametrize("solver", ["dtr{rounds=0}", "rk-checkmate{backward=false}", "store-all"])
def test_any_planner_may_plan_the_leaves(solver: str) -> None:
    program = encoder_decoder(4)
    lines: list[str] = []
    planner = parse_planner(f"hiremate{{children=4, leaf=3, peaks=2, saves=2, solver={solver}}}")
    budget = budget_of(program, 0.3)
    result = planner.plan(program, budget, progress=lines.append)
    check(program, budget, result)
    assert isinstance(result, Feasible | Optimal)
    assert not any("quick options for a part instead" in line for line in lines)


def test_no_long_step_is_begun_for_which_there_is_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on 10^5 computations, where a walk takes seconds and the tree as long as two of them."""
    program = transformer(2)
    budget = budget_of(program, 0.5)
    walk, skip = Search.walk, skips(monkeypatch)

    def slow(self: Search, heuristic: Heuristic, limit_bytes: int) -> Order | None:
        skip(300)
        return walk(self, heuristic, limit_bytes)

    monkeypatch.setattr(Search, "walk", slow)
    monkeypatch.setattr(Search, "heuristics", lambda self: [Heuristic()])
    monkeypatch.setattr("remat_compile.planners.hierarchy.hiremate.tree_of", None)
    result = Hiremate().plan(program, budget, time_limit_s=600)
    assert isinstance(result, TimedOut)
    assert result.schedule is not None
