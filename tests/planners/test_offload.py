"""Plans that copy to the host: bounds, placement, planners against the truth, and bad input."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import ClassVar

import pytest

from helpers.clock import HANGS_S
from helpers.planners.copying_truth import least_time_ns
from helpers.planners.graphs import chain, random_dag, residual, transformer, unet
from helpers.planners.matrix import COPYING, check, linked
from helpers.slow import default_only
from remat_compile.driver.budget import Baseline
from remat_compile.driver.run_planner import Attempt, Phases, run_planner
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.ir.schedule import Compute, Offload, Prefetch
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    PlanResult,
    parse_planner,
)
from remat_compile.planners.bounds.links import joint_ns, joint_program
from remat_compile.planners.bounds.moving import moving_ns
from remat_compile.planners.bounds.subset_sums import SubsetSums
from remat_compile.planners.contract import Progress, makes_copies
from remat_compile.planners.copying import joint_answer
from remat_compile.planners.copying.clock import time_ns
from remat_compile.planners.copying.gaps import gaps_of
from remat_compile.planners.copying.offload_table import Rates, best_sets
from remat_compile.planners.copying.place import (
    Frame,
    Move,
    place,
    steps_of,
    times_of,
    within,
)
from remat_compile.planners.copying.task import CopyTask
from remat_compile.planners.dtr import Dtr
from remat_compile.planners.instance import Instance, order_without
from remat_compile.planners.registry import available
from remat_compile.planners.solvers import MilpSolver


def share(program: Program, part: float) -> Budget:
    base = Baseline.of(program)
    low, high = base.activation_floor_bytes, base.activation_peak_bytes
    return Budget(int(low + part * (high - low)), "activation")


def bounds(program: Program, budget: Budget) -> tuple[int, int]:
    """The joint bound, and that of plans that recompute nothing."""
    instance = Instance.of(program, "activation")
    with MilpSolver() as solver:
        joint = joint_ns(instance, program.target, budget.bytes, solver, 30.0)
        relaxed = joint_ns(instance, program.target, budget.bytes, solver, 30.0, relaxed=True)
    assert relaxed <= joint
    return joint, moving_ns(instance, program.target, budget.bytes)


@pytest.mark.parametrize(
    ("seed", "rate", "part", "latency", "issue"),
    [
        (None, 0.5, 0.6, 0, 0),
        (None, 0.25, 0.75, 3, 0),
        (None, 0.5, 0.6, 0, 4),
        (3, 0.5, 0.7, 0, 0),
        pytest.param(3, 0.3, 0.8, 5, 0, marks=pytest.mark.slow),
        pytest.param(3, 0.3, 0.8, 5, 7, marks=pytest.mark.slow),
        pytest.param(8, 1.0, 0.6, 0, 0, marks=pytest.mark.slow),
    ],
)
def test_without_recomputation_nothing_is_faster_than_the_search(
    seed: int | None, rate: float, part: float, latency: int, issue: int
) -> None:
    program = linked(chain(4) if seed is None else chain(4, seed=seed), rate)
    target = replace(program.target, copy_latency_ns=latency, copy_issue_ns=issue)
    program = replace(program, target=target)
    budget = share(program, part)
    truth = least_time_ns(program, budget, recompute=False)
    joint, moment = bounds(program, budget)
    if truth is None:
        return
    assert max(joint, moment) <= truth
    for planner in ("offload-greedy", "offload-dp", "vdnn", "tflms", "autoswap"):
        result = parse_planner(planner).plan(program, budget)
        if isinstance(result, Optimal | Feasible):
            assert result.time_ns >= truth, planner
            if planner == "offload-dp":
                assert result.time_ns <= 1.1 * truth


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "part", "issue"), [(0.5, 0.6, 0), (2.0, 0.6, 0), (2.0, 0.6, 6)])
def test_with_recomputation_nothing_is_faster_than_the_search(
    rate: float, part: float, issue: int
) -> None:
    program = linked(chain(4), rate)
    program = replace(program, target=replace(program.target, copy_issue_ns=issue))
    budget = share(program, part)
    truth = least_time_ns(program, budget)
    assert truth is not None
    assert bounds(program, budget)[0] <= truth
    for planner in sorted(COPYING):
        result = parse_planner(planner).plan(program, budget)
        if isinstance(result, Optimal | Feasible):
            assert result.time_ns >= truth, planner
            if planner in ("pofo", "rk-pofo", "autocapper"):
                assert result.time_ns <= 1.1 * truth


def test_the_bounds_say_something() -> None:
    """One that is always the time with nothing recomputed would not pass."""
    program = linked(transformer(1), 0.3)
    budget = share(program, 0.4)
    joint, moment = bounds(program, budget)
    base_ns = Baseline.of(program).time_ns
    assert joint > base_ns
    assert moment > 1.2 * base_ns
    # With a link beyond all measure neither has anything to say.
    fast = linked(program, 1e6)
    assert bounds(fast, budget) == (base_ns, base_ns)


def test_a_shared_link_raises_the_bounds() -> None:
    program = linked(transformer(1), 0.4)
    rate = program.target.d2h_bytes_per_s
    shared = replace(program, target=replace(program.target, both_bytes_per_s=rate))
    budget = share(program, 0.4)
    assert bounds(shared, budget)[1] >= bounds(program, budget)[1]
    base = Baseline.of(program)
    over = base.activation_peak_bytes - budget.bytes
    assert rate is not None
    # Shilova 2021, Proposition 3: both ways over one link.
    assert bounds(shared, budget)[1] >= int(2 * over * 1e9 / rate) - 1


def test_a_total_below_one_direction_raises_no_bound() -> None:
    """Text may not say so (FB0221), a target made by hand may: one way alone keeps its rate."""
    program = linked(chain(4), 0.5)
    rate = program.target.d2h_bytes_per_s
    assert rate is not None
    slow = replace(program, target=replace(program.target, both_bytes_per_s=rate // 1000))
    for part in (0.6, 0.8):
        budget = share(slow, part)
        result = parse_planner("offload-greedy").plan(slow, budget)
        assert isinstance(result, Feasible)
        joint, moving = bounds(slow, budget)
        assert joint <= moving <= result.time_ns


def test_the_host_is_in_the_joint_bound() -> None:
    program = linked(transformer(1), 1.0)
    budget = share(program, 0.3)
    none = replace(program, target=replace(program.target, host_bytes=1))
    assert bounds(none, budget)[0] > bounds(program, budget)[0]
    instance = Instance.of(program, "activation")
    k = instance.loss
    built = joint_program(instance, program.target, budget.bytes, k)
    assert joint_program(instance, none.target, budget.bytes, k).rows == built.rows + 1


GRAPHS = {
    "chain": lambda: chain(9),
    "unet": unet,
    "residual": residual,
    "random": lambda: random_dag(40, 14),
}


@pytest.mark.parametrize(
    ("graph", "rate"),
    default_only(
        [(graph, rate) for graph in GRAPHS for rate in (0.3, 3.0)],
        [("chain", 0.3), ("unet", 3.0), ("residual", 0.3), ("random", 3.0)],
    ),
)
def test_bounds_are_never_above_a_plan(graph: str, rate: float) -> None:
    program = linked(GRAPHS[graph](), rate)
    budget = share(program, 0.5)
    joint, moment = bounds(program, budget)
    for planner in sorted(COPYING):
        result = parse_planner(planner).plan(program, budget, time_limit_s=5.0)
        if isinstance(result, Optimal | Feasible):
            assert joint <= result.time_ns, planner
            if all(n == 1 for n in simulate(program, result.schedule).executions.values()):
                assert moment <= result.time_ns, planner


def test_waits_stand_as_late_as_they_may() -> None:
    """The first of four equal tensors goes, just before the entry that has no room for it."""
    program = linked(chain(4), 1e6)
    instance = Instance.of(program, "activation")
    order = instance.capture
    gaps = gaps_of(instance, order)
    profile = instance.profile(order)
    assert [gap.made for gap in gaps] == sorted(gap.made for gap in gaps)
    moves = place(instance, Frame.of(instance, order), gaps, max(profile) - 1)
    assert moves is not None
    (move,) = moves
    assert move.gap == gaps[0]
    assert move.free == profile.index(max(profile))
    schedule = steps_of(instance, order, moves, "by hand")
    trace = simulate(program, schedule)
    assert trace.activation_peak_bytes <= max(profile) - 1
    kinds = [type(step) for step in schedule.steps if not isinstance(step, Compute)]
    assert kinds.index(Offload) < kinds.index(Prefetch)


def test_place_keeps_every_budget_that_it_promises() -> None:
    for seed in range(30):
        program = linked(random_dag(seed, 4 + seed % 12), 0.5 + seed % 3)
        instance = Instance.of(program, "activation")
        order = instance.capture
        gaps = gaps_of(instance, order)
        for part in (0.2, 0.5, 0.8):
            limit = share(program, part).bytes
            for early in (False, True):
                moves = place(instance, Frame.of(instance, order), gaps, limit, early=early)
                if moves is not None:
                    trace = simulate(program, steps_of(instance, order, moves, ""))
                    assert trace.activation_peak_bytes <= limit


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
    assert saying == COPYING
    assert makes_copies(parse_planner("auto"))
    assert not makes_copies(parse_planner("auto{offload=false}"))
    assert makes_copies(parse_planner("polish{of=pofo}"))
    assert not makes_copies(parse_planner("polish{of=dtr}"))


@dataclass(frozen=True)
class Silent:
    """Copies, and does not say so."""

    name: ClassVar[str] = "silent"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "a test"

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
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


@pytest.mark.parametrize("planner", ["autocapper", "pofo", "rk-pofo"])
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


@pytest.mark.parametrize("make", [lambda: chain(9), lambda: chain(14, seed=2), unet])
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


def test_the_bound_without_recomputation_by_hand() -> None:
    """A chain of four layers of 100 bytes, 10 ns forward and 20 back, over by 30 bytes in B5 and
    B6, before which 40 and 60 ns pass. A whole tensor has to go: none is made before 10 ns, and
    none that waits through B6 is read later than by the last 20 ns."""
    program = linked(chain(4), 1.0)
    instance = Instance.of(program, "activation")
    profile = instance.profile(instance.capture)
    budget = max(profile) - 30
    over = [k for k, n in enumerate(profile) if n > budget]
    assert [sum(instance.time_C[:k]) for k in over] == [40, 60]
    for out, back in ((10**9, 10**7), (10**7, 10**9), (10**8, 10**8)):
        target = replace(program.target, d2h_bytes_per_s=out, h2d_bytes_per_s=back)
        wanted = 10 + 10**11 // out + 20 + 20 + 10**11 // back + 20
        assert abs(moving_ns(instance, target, budget) - wanted) <= 1, wanted


def test_the_bound_without_recomputation_where_no_plan_fits() -> None:
    """Nothing waits through a moment that is over the budget by itself."""
    program = linked(chain(1), 1.0)
    instance = Instance.of(program, "activation")
    for budget in range(max(instance.profile(instance.capture))):
        assert moving_ns(instance, program.target, budget) >= instance.base_time_ns


def test_sums_of_whole_tensors() -> None:
    sums = SubsetSums.of(100, (60, 40, 30))
    for size in (60, 40, 30):
        sums.add(size)
    assert [sums.least(need) for need in (1, 31, 61, 71, 101, 131)] == [30, 40, 70, 90, 130, 131]
    # What is below a 512th counts as if it could be split.
    sums = SubsetSums.of(5120, (4000, 2000, 7))
    for size in (4000, 2000, 7):
        sums.add(size)
    assert [sums.least(need) for need in (2005, 2010, 4007)] == [2005, 4000, 4007]


def test_the_clock_of_copies_is_that_of_the_simulator() -> None:
    """With every kind of link, for orders that recompute and for such that do not."""
    seen = 0
    for seed in range(24):
        program = linked(random_dag(seed, 4 + seed % 12), 0.3 + seed % 3)
        rate = program.target.d2h_bytes_per_s
        both = rate if seed % 2 else None
        times = {"copy_latency_ns": seed % 5, "copy_issue_ns": 3 * (seed % 3)}
        target = replace(program.target, both_bytes_per_s=both, **times)
        program = replace(program, target=target)
        instance = Instance.of(program, "activation")
        for dropped in (frozenset[int](), frozenset({0, 1})):
            order = order_without(instance, dropped) if dropped else instance.capture
            for part, early in product((0.2, 0.5, 0.8), (False, True)):
                limit = share(program, part).bytes
                moves = place(
                    instance,
                    Frame.of(instance, order),
                    gaps_of(instance, order),
                    limit,
                    early=early,
                )
                if moves:
                    seen += 1
                    trace = simulate(program, steps_of(instance, order, moves, ""))
                    assert time_ns(times_of(instance, order), moves, target) == trace.time_ns
    assert seen > 50


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


def test_copies_back_are_issued_in_turn_and_as_soon_as_they_fit() -> None:
    program = linked(chain(9), 0.5)
    instance = Instance.of(program, "activation")
    order = instance.capture
    limit = share(program, 0.4).bytes
    moves = place(instance, Frame.of(instance, order), gaps_of(instance, order), limit)
    assert moves is not None
    assert len(moves) > 2
    moves.sort(key=lambda move: move.gap.back)
    assert [move.issue for move in moves] == sorted(move.issue for move in moves)
    for i, move in enumerate(moves):
        if move.issue > max(move.free, moves[i - 1].issue if i else 0):
            sooner = replace(move, issue=move.issue - 1)
            steps = steps_of(instance, order, [*moves[:i], sooner, *moves[i + 1 :]], "")
            assert simulate(program, steps).activation_peak_bytes > limit


def test_what_fits_is_what_the_simulator_says() -> None:
    """Of moves at random places, under limits just at and just below their peaks."""
    for seed in range(40):
        program = linked(random_dag(seed, 4 + seed % 12), 0.3 + seed % 3)
        instance = Instance.of(program, "activation")
        rng = Random(seed)
        dropped = frozenset(c for c in range(instance.loss) if not rng.randrange(4))
        frame = Frame.of(
            instance, order_without(instance, dropped) if seed % 2 else instance.capture
        )
        moves = []
        for gap in gaps_of(instance, frame.order):
            free = rng.randint(gap.last + 1, gap.back)
            moves.append(Move(gap, free, rng.randint(free, gap.back)))
        trace = simulate(program, steps_of(instance, frame.order, moves, ""))
        peak, host = trace.activation_peak_bytes, trace.host_peak_bytes
        for less in (0, 1):
            assert within(instance, frame, moves, peak - less) == (not less), seed
            small = replace(program, target=replace(program.target, host_bytes=host - less))
            here = Instance.of(small, "activation")
            assert within(here, frame, moves, peak) == (not less or not host), seed


def test_the_time_of_what_does_not_fit_is_not_told() -> None:
    """Also where the best plan is faster anyway, so that none of its schedules is simulated."""
    program = linked(chain(6), 0.5)
    budget = share(program, 0.5)
    task = CopyTask.of(program, budget, "test", float("inf"))
    order = task.instance.capture
    assert task.try_gaps(order, task.gaps(order)) is not None
    best = task.best
    assert best is not None
    slow = [Move(gap, gap.last + 1, gap.last + 1) for gap in task.gaps(order)]
    trace = simulate(program, steps_of(task.instance, order, slow, ""))
    assert trace.time_ns > best.time_ns
    assert not task.fits(trace)
    assert task.try_moves(order, slow) is None
    assert task.best is best


def test_both_ways_back_are_tried() -> None:
    """The early one is the faster one somewhere."""
    faster = set()
    for program in (linked(make(), 0.5) for make in (lambda: chain(9), unet, residual)):
        instance = Instance.of(program, "activation")
        order = instance.capture
        for part in (0.3, 0.45, 0.6, 0.75):
            budget = share(program, part)
            times = []
            for early in (True, False):
                gaps = gaps_of(instance, order)
                moves = place(instance, Frame.of(instance, order), gaps, budget.bytes, early=early)
                if moves is None:
                    break
                times.append(time_ns(times_of(instance, order), moves, program.target))
            if len(times) == 2:
                faster.add((times[0] > times[1]) - (times[0] < times[1]))
                result = parse_planner("offload-greedy").plan(program, budget)
                assert isinstance(result, Optimal | Feasible)
                assert result.time_ns <= min(times)
    assert -1 in faster


@pytest.mark.parametrize("rate", [0.1, 1e3])
def test_the_joint_bound_is_the_least_of_all_choices(rate: float) -> None:
    """For one moment, against every choice of what is alive, on the host, or made again; by a link
    that is slow, or by one that takes long to be used."""
    program = linked(chain(4), rate)
    instance = Instance.of(program, "activation")
    target = replace(program.target, copy_latency_ns=2, copy_issue_ns=30)
    # Replays that take long, so that the link is used.
    instance = replace(instance, retime_C=[1000 * ns for ns in instance.retime_C])
    profile = instance.profile(instance.capture)
    k = profile.index(max(profile))
    for limit in range(max(profile) - 200, max(profile), 50):
        wanted = least_of_all_choices(instance, target, limit, k)
        milp = joint_program(instance, target, limit, k)
        with MilpSolver() as solver:
            solved = solver.solve(milp, 30.0)
        scale = max(1.0, instance.base_time_ns / len(instance.time_C))
        if wanted is None:
            assert solved.status == "infeasible"
        else:
            assert solved.bound * scale == pytest.approx(wanted, rel=1e-6)


def least_of_all_choices(instance: Instance, target: Target, limit: int, k: int) -> float | None:
    """The program of `bounds/links.py` by enumeration, for a chain without results that are
    kept."""
    inst = instance
    made = {a for c in range(k) for a in inst.writes_C[c]}
    needed = {a for c in range(k + 1, len(inst.names_C)) for a in inst.reads_C[c]} & made
    there = set(inst.reads_C[k]) | {a for a in made if inst.kept_A[a]}
    own = inst.workspace_C[k] + sum(inst.size_A[a] for a in inst.writes_C[k])
    tensors = sorted(made)
    best: float | None = None
    for choice in product(("alive", "host", "gone"), repeat=len(tensors)):
        state = dict(zip(tensors, choice, strict=True))
        alive = {a for a in tensors if state[a] == "alive"}
        if not there <= alive or sum(inst.size_A[a] for a in alive) + own > limit:
            continue
        again: set[int] = set()
        todo = [a for a in needed if state[a] == "gone"]
        possible = True
        while todo:
            c = inst.writer_A[todo.pop()]
            possible &= inst.makable_C[c]
            if c not in again:
                again.add(c)
                todo += [a for a in inst.rereads_C[c] if state.get(a, "alive") == "gone"]
        if not possible:
            continue
        away = [inst.size_A[a] for a in tensors if state[a] == "host"]
        ways = []
        for rate in (target.d2h_bytes_per_s, target.h2d_bytes_per_s):
            assert rate is not None
            ways.append(len(away) * target.copy_latency_ns + sum(away) * 1e9 / rate)
        issues = len(away) * target.copy_issue_ns
        done, total = sum(inst.time_C[:k]) + issues, inst.base_time_ns
        replayed = sum(inst.retime_C[c] for c in again)
        rest = total - done + 2 * issues + replayed
        time = max(done, ways[0]) + max(rest, inst.time_C[k] + ways[1])
        best = time if best is None else min(best, time)
    return best


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
