"""`offmate` and `zero-infinity`: parameters and gradients at home on the host, in schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest

from helpers.planners.graphs import chain, residual
from helpers.planners.matrix import SMALL, linked
from remat_compile.ir.analysis.liveness import floor_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Free, Home, Offload, Prefetch, Schedule, Wait
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import Feasible, Infeasible, Optimal, parse_planner
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.instance import Instance
from remat_compile.planners.offmate.homes.movable import MovableOrder, movable_names
from remat_compile.planners.offmate.homes.place import (
    Choice,
    Placement,
    everything,
    gaps_of,
    is_home_gap,
    refilled,
    repaired,
)
from remat_compile.planners.offmate.homes.program import HomesProgram, segments_of
from remat_compile.planners.offmate.homes.search import HomesTask
from remat_compile.planners.offmate.offmate import OffMate
from remat_compile.planners.offmate.zero_infinity import ZeroInfinity
from remat_compile.planners.results import Task
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import Phases, run_planner
from remat_compile.verifier import ProvenPlan, verify

GRAPHS = ("uneven chain", "residual", "stochastic", "towers", "encoder-decoder", "random 40")


@pytest.fixture(scope="module")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as one:
        yield one


def budget_at(program: Program, share: float) -> Budget:
    """A place between what no plan with homes can do without and the step as it is."""
    low, _ = floor_bytes(program, homes=movable_names(program))
    return Budget(int(low + share * (Baseline.of(program).peak_bytes - low)))


def found(program: Program, planner: OffMate | ZeroInfinity | Dtr, budget: Budget) -> int | None:
    """The time of a plan, held to its word; None where there is none."""
    result = planner.plan(program, budget, time_limit_s=30)
    if isinstance(result, Infeasible):
        assert result.why.code == "FB0407"
        if result.min_budget is not None:
            assert result.floor_bytes <= result.min_budget.bytes
            assert budget.bytes < result.min_budget.bytes
        return None
    assert isinstance(result, Optimal | Feasible)
    trace = simulate(program, result.schedule)
    assert trace.peak_bytes <= budget.bytes
    assert trace.time_ns == result.time_ns
    assert result.lower_bound_ns is not None
    assert result.lower_bound_ns <= result.time_ns
    proof = verify(program, result.schedule, (budget,), time_limit_s=60)
    assert isinstance(proof, ProvenPlan), proof
    assert proof.proven.device_bytes <= budget.bytes
    return result.time_ns


@pytest.mark.parametrize("graph", GRAPHS)
def test_plans_are_proven_and_never_slower_than_others(graph: str) -> None:
    program = linked(SMALL[graph](), 2.0)
    plans = 0
    for share in (0.25, 0.5, 0.8):
        budget = budget_at(program, share)
        planners = (OffMate(), ZeroInfinity(), Dtr(rounds=0))
        ours, infinity, dtr = (found(program, planner, budget) for planner in planners)
        for other in (infinity, dtr):
            assert other is None or (ours is not None and ours <= other)
        plans += ours is not None
    assert plans >= 2


def test_a_budget_below_all_parameters_together() -> None:
    """Of 14 layers, with parameters and gradients of 560 bytes together."""
    program = linked(chain(14), 2.0)
    budget = Budget(700)
    assert isinstance(Dtr().plan(program, budget), Infeasible)
    result = OffMate().plan(program, budget, time_limit_s=30)
    assert isinstance(result, Feasible)
    assert len(result.schedule.homes) >= 14


def test_a_faster_link_and_more_bytes_are_never_slower() -> None:
    program = chain(9, seed=3)
    for share in (0.3, 0.6):
        ones = [linked(program, rate) for rate in (0.2, 1.0, 5.0, 1e6)]
        times = [found(one, OffMate(), budget_at(one, share)) or 0 for one in ones]
        assert times == sorted(times, reverse=True)
        assert times[-1] > 0
    one = linked(program, 1.0)
    times = [found(one, OffMate(), budget_at(one, share)) or 0 for share in (0.3, 0.5, 0.7, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == Baseline.of(one).time_ns


# The choice for one order, against all choices


def all_choices(view: MovableOrder) -> Iterator[Choice]:
    rows = []
    for param in view.params:
        home, *inner = gaps_of(view, param)
        rows.append(
            [frozenset()]
            + [
                frozenset({home, *some})
                for n in range(len(inner) + 1)
                for some in combinations(inner, n)
            ]
        )
    names = [grad.name for grad in view.grads]
    sent = [frozenset(some) for n in range(len(names) + 1) for some in combinations(names, n)]
    for chosen, leaving in product(product(*rows), sent):
        yield Choice(frozenset().union(*chosen), leaving)


@pytest.mark.parametrize("rate", [0.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_for_an_order_is_near_the_best(
    seed: int, rate: float, solver: MilpSolver
) -> None:
    program = linked(chain(3, 60, seed=seed), rate)
    instance = Instance.of(program, "activation")
    view = MovableOrder.of(instance, instance.capture)
    peak = Baseline.of(program).peak_bytes
    for share in (0.75, 0.85, 0.95):
        limit = int(share * peak)
        times = []
        for choice in all_choices(view):
            placement = Placement(view, limit, choice)
            trace = simulate(program, placement.schedule(instance, "all"))
            # What the room says is what the simulator counts.
            assert (trace.peak_bytes <= limit) is placement.fits
            if placement.fits:
                times.append(trace.time_ns)
        task = HomesTask(Task.of(program, Budget(limit), "offmate"))
        task.try_order(instance.capture, solver)
        if not times:
            assert task.best is None
            continue
        assert task.best is not None
        rows = HomesProgram(view, limit, most_segments=10**6, price=0.0)
        bound = solver.solve(rows.builder.build(), 30).objective * rows.unit_ns
        assert bound <= min(times) + 1e-6
        assert min(times) <= task.best[1].time_ns <= 1.05 * min(times)


def test_rooms_and_schedules_agree_on_larger_graphs() -> None:
    for graph in GRAPHS:
        program = linked(SMALL[graph](), 2.0)
        instance = Instance.of(program, "activation")
        view = MovableOrder.of(instance, instance.capture)
        for share in (0.5, 0.7, 0.9):
            limit = budget_at(program, share).bytes
            for choice in (Choice(), everything(view)):
                placement = repaired(view, limit, choice)
                placement = refilled(view, limit, placement) if placement.fits else placement
                trace = simulate(program, placement.schedule(instance, "x"))
                assert (trace.peak_bytes <= limit) is placement.fits


def test_segments_are_the_entries_in_order() -> None:
    program = linked(chain(9), 2.0)
    instance = Instance.of(program, "activation")
    view = MovableOrder.of(instance, instance.capture)
    for most in (1, 4, 10**6):
        rows = segments_of(view, most)
        assert [i for row in rows for i in row] == list(range(len(view.order)))
        assert all(rows)
    assert len(segments_of(view, 10**6)) > len(segments_of(view, 4)) > 1


# Each step of a schedule is needed


def test_without_one_of_its_steps_a_schedule_is_refused() -> None:
    program = linked(residual(3), 2.0)
    instance = Instance.of(program, "activation")
    view = MovableOrder.of(instance, instance.capture)
    schedule = Placement(view, 10**9, everything(view)).schedule(instance, "x")
    kinds = set()
    for k, step in enumerate(schedule.steps):
        names = {gap[0] for gap in everything(view).dropped} | everything(view).sent
        if isinstance(step, Compute) or step.anode not in names:
            continue
        kinds.add(type(step))
        mutant = replace(schedule, steps=(*schedule.steps[:k], *schedule.steps[k + 1 :]))
        with pytest.raises(FBError):
            simulate(program, mutant)
        assert not isinstance(verify(program, mutant, (), time_limit_s=60), ProvenPlan)
    assert kinds == {Home, Prefetch, Wait, Free, Offload}


def test_schedules_are_read_as_they_are_written() -> None:
    program = linked(residual(3), 2.0)
    result = OffMate().plan(program, budget_at(program, 0.2), time_limit_s=30)
    assert isinstance(result, Optimal | Feasible)
    text = format_program(program.with_schedule(result.schedule))
    (again,) = parse_program(text).schedules
    assert replace(again, span=None) == result.schedule


# Kinds of storage


def _schedule(program: Program, limit: int = 10**9) -> Schedule:
    instance = Instance.of(program, "activation")
    view = MovableOrder.of(instance, instance.capture)
    return Placement(view, limit, everything(view)).schedule(instance, "x")


def test_gradients_that_the_caller_adds_up_are_counted_where_they_are() -> None:
    fresh = linked(chain(4), 2.0)
    program = replace(fresh, binding=replace(fresh.binding, grads="accumulate"))
    schedule = _schedule(program)
    assert isinstance(verify(program, schedule, (), time_limit_s=60), ProvenPlan)
    here, there = simulate(fresh, _schedule(fresh)), simulate(program, schedule)
    assert there.peak_bytes == here.peak_bytes
    assert there.host_peak_bytes == here.host_peak_bytes + 4 * 20
    for share in (0.3, 0.7):
        found(program, OffMate(), budget_at(program, share))


def test_a_parameter_that_nobody_reads_is_never_on_the_device() -> None:
    program = linked(chain(4), 2.0)
    graph = program.graph
    (first, *_) = (a for a in graph.anodes if a.kind == "param")
    idle = replace(first, name="idle")
    wider = replace(program, graph=replace(graph, anodes=(idle, *graph.anodes)))
    schedule = _schedule(wider)
    assert [step for step in schedule.steps if getattr(step, "anode", "") == "idle"] == [
        Home("idle")
    ]
    assert isinstance(verify(wider, schedule, (), time_limit_s=60), ProvenPlan)


def test_homes_are_of_what_may_be_there() -> None:
    view = MovableOrder.of(
        Instance.of(linked(chain(4), 2.0), "activation"),
        list(range(len(linked(chain(4), 2.0).graph.cnodes))),
    )
    assert {p.name for p in view.params} == {f"w{i}" for i in range(4)}
    assert {g.name for g in view.grads} == {f"dw{i}" for i in range(4)}
    homes = [gaps_of(view, param)[0] for param in view.params]
    assert all(map(is_home_gap, homes))


# Answers and refusals


def test_a_budget_of_activations_is_the_other_planners() -> None:
    program = linked(chain(9), 2.0)
    budget = Budget(600, "activation")
    ours = OffMate().plan(program, budget)
    other = Dtr(rounds=0).plan(program, budget)
    assert isinstance(ours, Optimal | Feasible)
    assert ours.schedule.steps == other.schedule.steps
    assert ours.schedule.planner == "offmate"


def test_a_host_that_is_too_small_is_named_with_what_would_do() -> None:
    program = linked(chain(9), 2.0)
    budget = budget_at(program, 0.3)
    free = OffMate().plan(program, budget, time_limit_s=30)
    assert isinstance(free, Feasible)
    tight = replace(program, target=replace(program.target, host_bytes=40))
    refused = OffMate().plan(tight, budget, time_limit_s=30)
    assert isinstance(refused, Infeasible)
    assert refused.why.code == "FB0475"
    assert refused.short_of == "host"
    needed = int(refused.why.message.rsplit(" ", 1)[1])
    roomy = replace(program, target=replace(program.target, host_bytes=needed))
    result = OffMate().plan(roomy, budget, time_limit_s=30)
    assert isinstance(result, Feasible)
    assert simulate(roomy, result.schedule).host_peak_bytes <= needed


def test_the_least_that_is_named_would_do() -> None:
    for planner in (OffMate(), ZeroInfinity()):
        program = linked(chain(9), 2.0)
        refused = planner.plan(program, Budget(100), time_limit_s=30)
        assert isinstance(refused, Infeasible)
        assert refused.min_budget is not None
        assert refused.floor_bytes <= refused.min_budget.bytes
        assert f"{refused.min_budget.bytes} bytes" in refused.why.message
        assert found(program, planner, refused.min_budget) is not None


def test_a_planner_that_copies_cannot_give_the_orders() -> None:
    assert parse_planner("offmate{of=rotor}").of.name == "rotor"
    with pytest.raises(FBError) as caught:
        parse_planner("offmate{of=pofo}")
    assert "cannot be a planner that copies itself" in caught.value.diagnostics[0].message


def test_bounds_that_count_parameters_as_there_are_not_claimed() -> None:
    """A plan with homes beats the bound of plans without them, and is not called wrong for it."""
    program = linked(chain(9), 1e6)
    budget = budget_at(program, 0.45)
    planned = run_planner(
        program, OffMate(), budget, Baseline.of(program), time_limit_s=30, phases=Phases()
    )
    assert planned.schedule.homes
    assert planned.lower_bound_ns == Baseline.of(program).time_ns
