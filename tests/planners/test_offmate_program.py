"""The step of blocks with parameters, gradients and states: program, whole tensors, clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from helpers.planners.graphs import chain, transformer
from helpers.planners.matrix import linked
from helpers.planners.offmate_truth import (
    everything_there,
    least_time_ns,
    partition_step,
    small_step,
)
from remat_compile.ir.program import Target
from remat_compile.planners.offmate.blocks.clock import time_ns, timing_of
from remat_compile.planners.offmate.blocks.comparators import COMPARATORS, fits
from remat_compile.planners.offmate.blocks.courses import (
    Course,
    Stay,
    StepPlan,
    bytes_T,
    faults,
    host_bytes,
)
from remat_compile.planners.offmate.blocks.improve import improved, shrunk
from remat_compile.planners.offmate.blocks.instance import (
    Group,
    Option,
    Rates,
    StepInstance,
    Tensor,
    blocks_of,
)
from remat_compile.planners.offmate.blocks.program import StepProgram
from remat_compile.planners.offmate.blocks.rounding import at_least, at_most, rounded
from remat_compile.planners.offmate.blocks.solve import lower_bound_ns, plan_step
from remat_compile.planners.solvers import MilpSolver


@pytest.fixture(scope="module")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as one:
        yield one


def keep(blocks: int, time: int = 100) -> tuple[tuple[Option, ...], ...]:
    return ((Option("keep", time, 2 * time, 0, 0, 0),),) * blocks


def two_blocks(**rates: float) -> StepInstance:
    """Two blocks of 100 ns forward and 200 back, a tensor of 50 bytes each, 1 byte a ns."""
    groups = tuple(Group((Tensor(f"w{i}", 50, 50),), (i,)) for i in range(2))
    target = Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9)
    return StepInstance(keep(2), groups, (0,) * 4, target, Rates(**rates))


def full_bytes(instance: StepInstance) -> int:
    """The bytes of the step with nothing moved and nothing recomputed."""
    return max(bytes_T(instance, everything_there(instance, (0,) * instance.blocks)))


# Truth

CASES = [
    (2, 2.0, True, 1, (0.75, 0.6)),
    (2, 1.0, False, 2, (0.75, 0.6)),
    (2, 0.0, True, 3, (0.9, 0.75)),
    (3, 0.0, True, 1, (0.75,)),
]


@pytest.mark.parametrize(("blocks", "states", "cpu", "options", "shares"), CASES)
@pytest.mark.parametrize("seed", range(2))
def test_no_plan_is_below_the_bound_and_ours_is_the_best(
    blocks: int,
    states: float,
    cpu: bool,
    options: int,
    shares: tuple[float, ...],
    seed: int,
    solver: MilpSolver,
) -> None:
    free = small_step(seed, blocks, states=states, cpu=cpu, options=options)
    for share in shares:
        instance = free.under(int(share * full_bytes(free)))
        truth = least_time_ns(instance)
        answer = plan_step(instance, solver=solver, time_limit_s=60)
        if truth is None:
            assert answer.plan is None
            continue
        assert answer.plan is not None
        assert answer.lower_bound_ns <= truth <= answer.time_ns <= 1.05 * truth
        assert fits(instance, answer.plan)
        assert not faults(instance, answer.plan)


@pytest.mark.parametrize(
    ("numbers", "is_partition"),
    [([5, 5, 5], True), ([4, 5, 6, 4, 5, 6], True), ([4, 4, 4, 6, 6, 6], False)],
)
def test_instances_of_theorem_4_2_1(
    numbers: list[int], is_partition: bool, solver: MilpSolver
) -> None:
    """Fractions always take 2 m units; whole tensors only where there is a partition."""
    instance = partition_step(numbers)
    units = 2 * len(numbers) // 3 * 10**6
    times = {}
    for whole in (False, True):
        program = StepProgram(instance, whole=whole, priced=False)
        answer = solver.solve(program.build(), 60)
        assert answer.status == "optimal"
        assert answer.point is not None
        times[whole] = round(answer.objective * program.unit_ns)
        plan = rounded(instance, program.fractions(answer.point))
        assert not faults(instance, plan)
        assert fits(instance, plan)
    assert times[False] == units
    assert (times[True] == units) is is_partition
    # By the clock, but for the end of each copy on a whole nanosecond.
    assert time_ns(instance, plan) <= times[True] + instance.steps


# Monotone


@pytest.mark.parametrize("seed", range(3))
def test_more_memory_or_a_faster_link_is_never_slower(seed: int, solver: MilpSolver) -> None:
    free = small_step(seed, 3, states=1.0, cpu=True, options=2)
    high = full_bytes(free)
    bounds, times = [], []
    for share in (0.7, 0.85, 1.0, 1.2):
        answer = plan_step(free.under(int(share * high)), solver=solver, time_limit_s=60)
        if answer.plan is not None:
            bounds.append(answer.lower_bound_ns)
            times.append(answer.time_ns)
    assert len(times) >= 2
    assert bounds == sorted(bounds, reverse=True)
    assert times == sorted(times, reverse=True)
    bounds = []
    for rate in (10**8, 10**9, 10**10):
        target = replace(free.target, d2h_bytes_per_s=rate, h2d_bytes_per_s=rate)
        faster = replace(free, target=target).under(int(0.85 * high))
        bounds.append(lower_bound_ns(faster, solver, 30))
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


def test_a_link_that_both_directions_share_is_no_faster(solver: MilpSolver) -> None:
    free = small_step(1, 3, states=1.0, cpu=True, options=1)
    tight = free.under(int(0.85 * full_bytes(free)))
    shared = replace(tight, target=replace(tight.target, both_bytes_per_s=10**9))
    alone, both = (plan_step(i, solver=solver, time_limit_s=60) for i in (tight, shared))
    assert alone.lower_bound_ns < both.lower_bound_ns <= both.time_ns
    assert alone.time_ns <= both.time_ns


# The clock and the bytes, by hand


def test_everything_on_the_device_takes_its_computations_and_updates() -> None:
    instance = two_blocks(device_bytes_per_s=1e9, states=2.0)
    plan = everything_there(instance, (0, 0))
    # 100 + 100 + 200 + 50 (update of w1) + 200 + 50
    assert time_ns(instance, plan) == instance.unlimited_ns == 700
    # Two parameters with two states for a byte, and the gradient that is being made.
    assert bytes_T(instance, plan) == [300, 300, 350, 350]
    assert host_bytes(instance, plan) == 100


def test_what_leaves_behind_its_update_is_waited_for_where_its_bytes_go() -> None:
    instance = two_blocks(device_bytes_per_s=1e9, states=0.0)
    # w1 (used by steps 1 and 2) is gone in step 3 and comes back during step 0.
    away = Stay(frozenset({3}), frozenset({0}), 2)
    first, second = everything_there(instance, (0, 0)).courses
    plan = StepPlan((0, 0), (first, replace(second, weight=away)))
    timing = timing_of(instance, plan)
    # Step 3 begins at 450, and computes when the 50 bytes are out.
    assert timing.time_ns == 750
    assert timing.stalls_ns == {(3, "d2h", ("weight", 1)): 50}
    assert timing.starts_T == [0, 100, 200, 450]
    assert bytes_T(instance, plan) == [100, 100, 150, 100]
    assert host_bytes(instance, plan) == 100


def test_the_device_waits_for_the_cpu_where_a_tensor_comes_back() -> None:
    instance = two_blocks(device_bytes_per_s=1e9, cpu_bytes_per_s=0.1e9, states=0.0)
    first, second = everything_there(instance, (0, 0)).courses
    away = Stay(frozenset({3}), frozenset({0}))
    by_cpu = replace(second, weight=away, grad_sent=2, updated=3)
    plan = StepPlan((0, 0), (first, by_cpu))
    assert not faults(instance, plan)
    # The gradient is out at 450, 50 ns behind step 2; the CPU takes 500 ns from there, to 950. Step
    # 3 is done at 450 + 200 + 50 = 700, and step 0 waits for the CPU before the copy back.
    timing = timing_of(instance, plan)
    assert timing.stalls_ns == {(0, "cpu", ("weight", 1)): 250, (3, "d2h", ("grad", 1)): 50}
    assert timing.time_ns == 100 + 100 + 200 + 50 + 200 + 50 + 250
    # Its gradient counts in step 2; the parameter does not in step 3, and again from step 0 on.
    assert bytes_T(instance, plan) == [100, 100, 150, 100]
    assert host_bytes(instance, plan) == 150


def test_pieces_of_activations_leave_while_the_forward_runs() -> None:
    sends = Option("offload", 100, 200, 0, 60, 60, ((40, 60), (90, 30)))
    assert sends.sent_bytes == 90
    target = Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9)
    # 60 bytes from 40 to 100, 30 behind them to 130.
    assert sends.alone_ns(target) == 130
    instance = StepInstance(((sends,), *keep(1)), (), (0,) * 4, target, Rates())
    plan = StepPlan((0, 0), ())
    # They come back during step 2, the backward of the other block, in 90 of its 200 ns.
    assert time_ns(instance, plan) == 130 + 100 + 200 + 200
    assert bytes_T(instance, plan) == [60, 0, 90, 60]
    assert host_bytes(instance, plan) == 90


# Faults: each a plan that no step can run

GOOD = Course(1, Tensor("w1", 50, 50), Stay(frozenset({3}), frozenset({0}), 2))
BY_CPU = replace(GOOD, weight=Stay(frozenset({3}), frozenset({0})), grad_sent=2, updated=3)


@pytest.mark.parametrize(
    ("course", "fault"),
    [
        (GOOD, None),
        (BY_CPU, None),
        (replace(GOOD, weight=Stay(frozenset({3, 2}), frozenset({0}), 1)), "where it is used"),
        (replace(GOOD, weight=Stay(frozenset({3}), frozenset({3}), 2)), "while it is absent"),
        (replace(GOOD, weight=Stay(frozenset({3}), frozenset(), 2)), "does not come back"),
        (replace(GOOD, weight=Stay(frozenset({3, 0}), frozenset({1}), 2)), None),
        (replace(GOOD, weight=Stay(frozenset({3}), frozenset({0}))), "before the host has it"),
        (replace(GOOD, weight=Stay(frozenset({3}), frozenset({0}), 3)), "before the host has it"),
        (replace(GOOD, states=Stay(frozenset({0}), frozenset({1}))), "states of w1 is dropped"),
        (replace(BY_CPU, grad_sent=1), "not sent after its last writer"),
        (replace(BY_CPU, grad_sent=None), "not sent after its last writer"),
        (replace(BY_CPU, updated=2), "before its gradient is there"),
        (replace(BY_CPU, weight=Stay()), "while the CPU updates it"),
        (replace(BY_CPU, updated=0), "on the device while the CPU"),
    ],
)
def test_plans_that_no_step_can_run(course: Course, fault: str | None) -> None:
    instance = two_blocks(states=1.0)
    said = faults(instance, StepPlan((0, 0), (Course(0, Tensor("w0", 50, 50)), course)))
    if fault is None:
        assert not said
    else:
        assert any(fault in text for text in said), said


# Whole tensors


@pytest.mark.parametrize("seed", range(20))
def test_subsets_reach_a_sum_with_the_least_bytes(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 40) for _ in range(rng.randint(1, 7))]
    sums = [sum(some) for n in range(len(sizes) + 1) for some in combinations(sizes, n)]
    for need in (0, 1, sum(sizes) // 3, sum(sizes) // 2, sum(sizes), sum(sizes) + 1):
        reached = sum(sizes[k] for k in at_least(sizes, need))
        assert reached == min((n for n in sums if n >= need), default=sum(sizes))
        within = sum(sizes[k] for k in at_most(sizes, need))
        assert within == max(n for n in sums if n <= need)


def many_tensors(seed: int) -> StepInstance:
    """Four blocks with three tensors each, and one that two blocks share."""
    rng = random.Random(seed)
    groups = [
        Group(tuple(Tensor(f"w{i}.{k}", n, n) for k, n in enumerate(sizes)), (i,))
        for i, sizes in enumerate([[rng.randint(5, 30) for _ in range(3)] for _ in range(4)])
    ]
    groups.append(Group((Tensor("tied", 20, 20), Tensor("frozen", 15, 0)), (0, 3)))
    target = Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9)
    rates = Rates(4e9, 1e9, 2.0)
    return StepInstance(keep(4), tuple(groups), (10,) * 8, target, rates)


@pytest.mark.parametrize("seed", range(6))
def test_rounded_plans_can_be_run_and_improving_keeps_them_so(
    seed: int, solver: MilpSolver
) -> None:
    free = many_tensors(seed)
    for share in (0.9, 0.75, 0.6):
        instance = free.under(int(share * full_bytes(free)))
        program = StepProgram(instance)
        answer = solver.solve(program.build(), 30)
        if answer.point is None:
            continue
        plan = rounded(instance, program.fractions(answer.point))
        assert not faults(instance, plan)
        assert time_ns(instance, plan) >= lower_bound_ns(
            instance.under(max(instance.memory_bytes, *bytes_T(instance, plan))), solver, 30
        )
        roomy = instance.under(max(bytes_T(instance, plan)))
        better, timing = improved(roomy, plan, float("inf"))
        assert not faults(instance, better)
        assert fits(roomy, better)
        assert timing.time_ns == time_ns(roomy, better) <= time_ns(roomy, plan)


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_holds_too_much_shrinks(seed: int) -> None:
    free = many_tensors(seed)
    plan = everything_there(free, (0,) * 4)
    for share in (0.9, 0.7, 0.6):
        instance = free.under(int(share * full_bytes(free)))
        leaner = shrunk(instance, plan)
        assert not faults(instance, leaner)
        assert fits(instance, leaner)
    # What no plan has room for is given up.
    assert not faults(free, shrunk(free.under(1), plan))


def test_without_time_there_are_the_comparators_and_the_computations() -> None:
    free = many_tensors(1)
    answer = plan_step(free, time_limit_s=1e-3)
    assert answer.plan is not None
    assert answer.found_by in COMPARATORS
    assert answer.lower_bound_ns == 4 * 300 <= answer.time_ns


# Comparators


@pytest.mark.parametrize("name", sorted(COMPARATORS))
def test_comparators_can_be_run_and_are_never_faster(name: str, solver: MilpSolver) -> None:
    free = many_tensors(3)
    # Each of five updates ends on a whole nanosecond.
    assert abs(time_ns(free, COMPARATORS["on-device"](free)) - free.unlimited_ns) <= 5
    for share in (1.0, 0.8, 0.65):
        instance = free.under(int(share * full_bytes(free)))
        plan = COMPARATORS[name](instance)
        answer = plan_step(instance, solver=solver, time_limit_s=60)
        if plan is not None:
            assert not faults(instance, plan)
            assert answer.plan is not None
            assert answer.lower_bound_ns <= answer.time_ns <= time_ns(instance, plan)


def test_a_host_that_is_too_small_is_not_used(solver: MilpSolver) -> None:
    free = many_tensors(1).under(int(0.75 * full_bytes(many_tensors(1))))
    parameters = sum(group.size_bytes for group in free.groups)
    for host in (10 * parameters, 2 * parameters, parameters):
        instance = replace(free, target=replace(free.target, host_bytes=host))
        answer = plan_step(instance, solver=solver, time_limit_s=60)
        if answer.plan is not None:
            assert host_bytes(instance, answer.plan) <= host
    assert answer.plan is None


# From a graph


def test_the_blocks_of_a_chain() -> None:
    """Four layers of 100 bytes and 10 ns, parameters of 20: blocks and groups as in the graph."""
    program = linked(chain(4), 2.0)
    instance = blocks_of(program, Rates(states=2.0), small_bytes=0).instance
    assert [g.blocks for g in instance.groups] == [(0, 1), (1,), (2,), (3,)]
    assert all(t.size_bytes == t.grad_bytes == 20 for g in instance.groups for t in g.tensors)
    assert instance.unlimited_ns == 4 * 10 + 4 * 20
    names = [[option.name for option in options] for options in instance.options_L]
    assert all(row[0] == "keep" for row in names)
    held = blocks_of(program, Rates(states=2.0), small_bytes=21).instance
    assert not held.groups
    assert held.interface_T[0] == instance.interface_T[0] + 4 * 20 * 4


def test_a_captured_transformer_is_planned_within_its_memory(solver: MilpSolver) -> None:
    program = linked(transformer(2), 2.0)
    free = blocks_of(program, Rates(1e12, 1e11, 2.0), small_bytes=0).instance
    assert {o.name for row in free.options_L for o in row} >= {"keep", "recompute 1"}
    instance = free.under(int(0.7 * full_bytes(free)))
    answer = plan_step(instance, solver=solver, time_limit_s=30)
    assert answer.plan is not None
    assert max(bytes_T(instance, answer.plan)) <= instance.memory_bytes
    assert answer.lower_bound_ns <= answer.time_ns
