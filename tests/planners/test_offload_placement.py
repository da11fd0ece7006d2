"""Where a plan puts its copies: what fits, what it takes, and the simulator's word on both."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

from helpers.planners.budgets import share
from helpers.planners.graphs import chain, random_dag, residual, unet
from helpers.planners.matrix import linked
from remat_compile.ir.schedule import Compute, Offload, Prefetch
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.instance import Instance, order_without
from remat_compile.planners.offload.copies.clock import time_ns
from remat_compile.planners.offload.copies.gaps import gaps_of
from remat_compile.planners.offload.copies.place import (
    Frame,
    Move,
    place,
    steps_of,
    times_of,
    within,
)
from remat_compile.planners.offload.copies.task import CopyTask
from remat_compile.planners.results import Task


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
    task = CopyTask(Task.of(program, budget, "test", float("inf")))
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
