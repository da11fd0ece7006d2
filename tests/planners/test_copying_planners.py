"""What planners that copy to the host promise, and which inputs they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import pytest

from helpers.clock import HANGS_S
from helpers.planners.budgets import share
from helpers.planners.copying_truth import least_time_ns
from helpers.planners.graphs import chain, transformer, unet
from helpers.planners.matrix import COPYING, HOMES, check, linked
from helpers.planners.stub import Stub
from helpers.slow import default_only
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import Feasible, Infeasible, NotApplicable, Optimal, parse_planner
from remat_compile.planners.contract import makes_copies
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.offload.tables import joint_answer
from remat_compile.planners.offload.tables.offload_table import Rates, best_sets
from remat_compile.planners.registry import available
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import Attempt, Phases, run_planner


def test_a_host_budget_bounds_what_is_there_at_once() -> None:
    program = linked(transformer(1), 2.0)
    budget = share(program, 0.5)
    free = parse_planner("offload-greedy").plan(program, budget)
    assert isinstance(free, Optimal | Feasible)
    need = simulate(program, free.schedule).host_peak_bytes
    tight = replace(program, target=replace(program.target, host_bytes=need // 2))
    refused = parse_planner("offload-greedy").plan(tight, budget)
    assert isinstance(refused, Infeasible)
    assert refused.why.code == "FB0475"
    assert str(need) in refused.why.message
    # Recomputation makes up for it.
    mixed = parse_planner("autocapper").plan(tight, budget)
    assert isinstance(mixed, Optimal | Feasible)
    assert simulate(tight, mixed.schedule).host_peak_bytes <= need // 2
    greedy, base, phases = parse_planner("offload-greedy"), Baseline.of(tight), Phases()
    with pytest.raises(FBError) as caught:
        run_planner(tight, greedy, budget, base, time_limit_s=5.0, phases=phases)
    assert [d.code for d in caught.value.diagnostics] == ["FB0475"]


@pytest.mark.parametrize("planner", sorted(COPYING))
def test_a_target_without_a_link_is_refused(planner: str) -> None:
    with pytest.raises(FBError) as caught:
        parse_planner(planner).plan(chain(4), Budget(10_000))
    assert [d.code for d in caught.value.diagnostics] == ["FB0473"]


def test_the_planners_that_copy_say_so() -> None:
    loaded = {name: info.load() for name, info in available().items() if info.is_own}
    saying = {name for name, cls in loaded.items() if getattr(cls, "copies", None) is True}
    assert saying == COPYING | HOMES
    assert makes_copies(parse_planner("auto"))
    assert not makes_copies(parse_planner("auto{offload=false}"))
    assert makes_copies(parse_planner("polish{of=pofo}"))
    assert not makes_copies(parse_planner("polish{of=dtr}"))


@dataclass(frozen=True)
class Silent(Stub):
    """Copies, and does not say so."""

    name: ClassVar[str] = "silent"

    def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
        return parse_planner("offload-greedy").plan(program, budget)


def test_copies_of_a_planner_that_does_not_say_so_are_refused() -> None:
    program = linked(chain(9), 2.0)
    attempt = Attempt(program, Silent(), share(program, 0.6), 5.0, Phases())
    result = attempt.ask()
    assert isinstance(result, Optimal | Feasible)
    with pytest.raises(FBError) as caught:
        attempt.prove(result.schedule, None, "silent")
    assert [d.code for d in caught.value.diagnostics] == ["FB0476"]


@pytest.mark.parametrize("planner", sorted(COPYING - {"tflms", "opportunist"}))
def test_an_endless_link_costs_nothing(planner: str) -> None:
    program = linked(chain(9), 1e6)
    budget = share(program, 0.7)
    result = parse_planner(planner).plan(program, budget)
    status, time_ns, _ = check(program, budget, result)
    assert status == "optimal"
    assert time_ns == Baseline.of(program).time_ns


@pytest.mark.parametrize("planner", default_only(["autocapper", "pofo", "rk-pofo"], ["rk-pofo"]))
def test_a_joint_planner_is_no_slower_than_either_alone(planner: str) -> None:
    for rate in (0.02, 0.5, 2.0):
        program = linked(chain(9), rate)
        budget = share(program, 0.5)
        joint = parse_planner(planner).plan(program, budget)
        assert isinstance(joint, Optimal | Feasible)
        moved = parse_planner("offload-greedy").plan(program, budget)
        assert isinstance(moved, Optimal | Feasible)
        assert joint.time_ns <= moved.time_ns
        alone = Dtr().plan(program, budget) if planner == "autocapper" else None
        if isinstance(alone, Optimal | Feasible):
            assert joint.time_ns <= alone.time_ns


def test_answers_do_not_change_from_run_to_run() -> None:
    program = linked(transformer(1), 0.7)
    budget = share(program, 0.35)
    for planner in sorted(COPYING):
        one, other = (parse_planner(planner).plan(program, budget) for _ in range(2))
        assert one == other, planner


@pytest.mark.parametrize("make", [pytest.param(lambda: chain(9), marks=pytest.mark.slow), unet])
def test_a_link_that_moves_nothing_leaves_recomputation(make: Callable[[], Program]) -> None:
    """Each is no slower than the planner that its tables are those of without a link."""
    program = linked(make(), 1e-6)
    for part in (0.3, 0.6):
        budget = share(program, part)
        pairs = {"pofo": "rotor", "rk-pofo": "rotor", "autocapper{of=rotor}": "rotor"}
        pairs["autocapper"] = "dtr{rounds=0}"
        for joint, alone in pairs.items():
            plain = parse_planner(alone).plan(program, budget)
            if isinstance(plain, Optimal | Feasible):
                result = parse_planner(joint).plan(program, budget)
                assert isinstance(result, Optimal | Feasible), joint
                assert result.time_ns <= plain.time_ns, joint


def test_issuing_that_takes_very_long_leaves_recomputation() -> None:
    """Also where copies themselves take no time, and where there is no room for all plans."""
    program = linked(chain(9), 1e6)
    program = replace(program, target=replace(program.target, copy_issue_ns=10**9))
    budget = share(program, 0.5)
    for planner in ("pofo", "rk-pofo", "autocapper"):
        result = parse_planner(planner).plan(program, budget)
        assert isinstance(result, Optimal | Feasible)
        assert not result.schedule.has_copies, planner
    moved = parse_planner("offload-greedy").plan(program, budget)
    assert isinstance(moved, Feasible)
    assert moved.time_ns >= 2 * 10**9


@pytest.mark.parametrize("planner", sorted(COPYING))
def test_names_do_not_matter(planner: str) -> None:
    """A renamed step, its names sorted another way, gets the same plan."""
    text = format_program(linked(chain(9), 2.0))
    other = re.sub(r"%([a-z]+)(\d+)", lambda m: f"%z{9 - int(m[2])}{m[1]}", text)
    assert other != text
    times = []
    for program in map(parse_program, (text, other)):
        result = parse_planner(planner).plan(program, share(program, 0.7))
        assert isinstance(result, Optimal | Feasible)
        assert result.schedule.has_copies
        kinds = [type(step).__name__ for step in result.schedule.steps]
        times.append((result.time_ns, kinds))
    assert times[0] == times[1]


def test_what_is_no_chain_is_said() -> None:
    program = linked(chain(1), 1.0)
    for planner in ("pofo", "rk-pofo", "offload-dp", "opportunist"):
        result = parse_planner(planner).plan(program, Budget(1 << 30))
        assert isinstance(result, NotApplicable)
        assert result.why.code == "FB0409"


@pytest.mark.parametrize("rate", [0.4, pytest.param(1.0, marks=pytest.mark.slow)])
def test_auto_takes_what_copies_where_there_is_a_link(rate: float) -> None:
    program = linked(chain(9), rate)
    budget = share(program, 0.5)
    with_link = parse_planner("auto").plan(program, budget, time_limit_s=HANGS_S)
    without = parse_planner("auto{offload=false}").plan(program, budget, time_limit_s=HANGS_S)
    assert isinstance(with_link, Optimal | Feasible)
    assert isinstance(without, Optimal | Feasible)
    assert not without.schedule.has_copies
    assert with_link.schedule.has_copies
    assert with_link.time_ns <= without.time_ns
    assert with_link.lower_bound_ns is not None
    assert with_link.lower_bound_ns <= with_link.time_ns
    bare = replace(program, target=Target(granularity_bytes=program.target.granularity_bytes))
    plain = parse_planner("auto").plan(bare, budget, time_limit_s=HANGS_S)
    assert isinstance(plain, Optimal | Feasible)
    assert not plain.schedule.has_copies


def test_the_table_of_offload_finds_the_best_of_all_sets() -> None:
    """Theorem 10 against all subsets, in the table's own model with exact slots."""
    from helpers.planners.exhaustive_offload import best_of_all_sets, stages

    for seed in range(20):
        made, room, rate = stages(seed)
        rates = Rates(rate, rate, shared=False)
        sets = list(best_sets(made, room, room, rates, float("inf")))
        best, times = best_of_all_sets(made, room, rate)
        if best is None:
            assert sets == []
        else:
            assert times[sets[0]] == pytest.approx(best)


def test_offload_dp_is_as_fast_as_the_search() -> None:
    seen = 0
    for seed, part in product((1, 2, 3), (0.65, 0.8)):
        program = linked(chain(4, seed=seed), 0.3)
        budget = share(program, part)
        truth = least_time_ns(program, budget, recompute=False)
        result = parse_planner("offload-dp").plan(program, budget)
        if truth is not None:
            seen += 1
            assert isinstance(result, Optimal | Feasible)
            assert result.time_ns == truth, seed
    assert seen >= 3


def test_reorder_leaves_copies_as_they_are() -> None:
    program = linked(chain(9), 1.0)
    budget = share(program, 0.5)
    given = parse_planner("offload-greedy").plan(program, budget)
    assert isinstance(given, Feasible)
    assert given.schedule.has_copies
    result = parse_planner("reorder{of=offload-greedy}").plan(program, budget, time_limit_s=HANGS_S)
    check(program, budget, result)
    assert isinstance(result, Optimal | Feasible)
    assert result.schedule.steps == given.schedule.steps


def test_joined_blocks_are_not_the_last_word() -> None:
    """Where `pofo` joins blocks of a chain, persistent schedules of the single ones are tried."""
    program = linked(chain(30), 0.1)
    budget = share(program, 0.4)
    joined = parse_planner("pofo{most_stages=4}").plan(program, budget)
    alone = parse_planner("rotor").plan(program, budget)
    assert isinstance(joined, Optimal | Feasible)
    assert isinstance(alone, Optimal | Feasible)
    assert joined.time_ns <= alone.time_ns


def test_finer_blocks_make_no_plan_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts faster may end slower, so both are improved."""
    gains = []
    for seed, rate, part in ((1, 0.1, 0.4), (1, 0.3, 0.4), (2, 1.0, 0.4)):
        program = linked(chain(30, seed=seed), rate)
        budget = share(program, part)
        times = []
        for most in (6, 250):
            monkeypatch.setattr(joint_answer, "_FINE_STAGES", most)
            result = parse_planner("pofo{most_stages=6}").plan(program, budget)
            assert isinstance(result, Optimal | Feasible)
            times.append(result.time_ns)
        assert times[1] <= times[0], seed
        gains.append(times[0] - times[1])
    assert max(gains) > 0
