"""Windows of `polish` in plans with copies: exact in bytes, never hopeful in time, never slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain as joined
from itertools import combinations, pairwise, product
from random import Random
from time import monotonic
from typing import Any, ClassVar

import pytest

from helpers.clock import HANGS_S
from helpers.planners.exact_claims import holds
from helpers.planners.graphs import chain, random_dag, residual
from helpers.planners.matrix import linked
from helpers.planners.mixed_steps import mixed_chain, mixed_dag
from helpers.planners.stub import Stub
from helpers.slow import default_only
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import (
    Feasible,
    Infeasible,
    Optimal,
    PlanResult,
    TimedOut,
    parse_planner,
)
from remat_compile.planners.contract import makes_copies
from remat_compile.planners.instance import Instance, Order
from remat_compile.planners.offload.copies.clock import course_of, time_ns
from remat_compile.planners.offload.copies.place import Frame, Move, within
from remat_compile.planners.offload.copies.read_moves import moves_of
from remat_compile.planners.offload.copies.task import CopyTask
from remat_compile.planners.polish import polish, windows
from remat_compile.planners.polish.plan_events import PlanEvents
from remat_compile.planners.polish.polish import Polish
from remat_compile.planners.polish.window_program import Taken, WindowProgram, window_program
from remat_compile.planners.polish.window_rows import Detour
from remat_compile.planners.polish.windows import JointWindows
from remat_compile.planners.programs.events import Window
from remat_compile.planners.programs.solve_compact import is_valid
from remat_compile.planners.results import Task
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline
from remat_compile.verifier import ProvenPlan, verify

ENDLESS_S = 10 * HANGS_S
"""A limit that cuts no search short: where windows end does not hang on the clock then."""

MAKERS: tuple[Callable[[int], Program], ...] = (
    lambda seed: chain(9, seed=seed),
    lambda seed: random_dag(seed, 5 + seed % 12),
    mixed_chain,
    mixed_dag,
    lambda _: residual(3),
)


def random_task(seed: int) -> tuple[CopyTask, PlanResult] | None:
    """Some graph with some link, and a plan with something left to gain; None without one."""
    program, budget, given = random_plan(seed)
    if not isinstance(given, Feasible):
        return None
    return CopyTask(Task.of(program, budget, "test", monotonic() + ENDLESS_S)), given


@cache
def random_plan(seed: int) -> tuple[Program, Budget, PlanResult]:
    rng = Random(seed)
    program = linked(MAKERS[seed % len(MAKERS)](seed), rng.choice((0.1, 0.3, 1.0, 3.0)))
    target = program.target
    if rng.random() < 0.4:
        target = replace(target, copy_latency_ns=rng.randrange(8), copy_issue_ns=rng.randrange(8))
    if rng.random() < 0.3:
        target = replace(target, both_bytes_per_s=target.d2h_bytes_per_s)
    if rng.random() < 0.3:
        target = replace(target, host_bytes=Baseline.of(program).activation_peak_bytes // 3)
    program = replace(program, target=target)
    budget = part_of(program, rng.choice((0.2, 0.4, 0.6, 0.8)))
    inner = rng.choice(("offload-greedy", "autocapper", "vdnn", "dtr{rounds=0}"))
    return program, budget, parse_planner(inner).plan(program, budget)


def part_of(program: Program, part: float) -> Budget:
    base = Baseline.of(program)
    low, high = base.activation_floor_bytes, base.activation_peak_bytes
    return Budget(int(low + part * (high - low)), "activation")


def test_a_plan_is_read_back_as_it_was_placed() -> None:
    with_copies = 0
    for seed in range(30):
        if (made := random_task(seed)) is None:
            continue
        task, given = made
        assert isinstance(given, Feasible)
        order, moves = moves_of(task.instance, given.schedule)
        assert task.try_moves(order, moves) == given.time_ns
        with_copies += bool(moves)
        assert len(moves) == sum(type(step).__name__ == "Offload" for step in given.schedule.steps)
    assert with_copies > 5


@pytest.fixture(autouse=True)
def _few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of which none gains anything are enough here."""
    monkeypatch.setattr(polish, "_IDLE_WITH_COPIES", 4)


@dataclass(frozen=True)
class _Decided:
    """A window's program with what its best point says, in entries."""

    program: WindowProgram
    objective_ns: float
    order: Order
    moves: Sequence[Move]


def decided(
    task: CopyTask, patch: pytest.MonkeyPatch, seed: int, solver: MilpSolver, count: int
) -> Iterator[_Decided]:
    """Windows drawn in a plan, those that are solved with a point."""
    programs: list[WindowProgram] = []
    points: list[tuple[Order, list[Move]]] = []
    objectives: list[float] = []
    solve, place = solver.solve, JointWindows._place

    def stated(*args: object) -> WindowProgram:
        programs.append(window_program(*args))  # type: ignore[arg-type]
        return programs[-1]

    def solved(*args: object, **options: object) -> object:
        answer = solve(*args, **options)  # type: ignore[arg-type]
        objectives.append(answer.objective)
        return answer

    def placed(self: JointWindows, order: Order, moves: list[Move]) -> None:
        points.append((order, moves))
        place(self, order, moves)

    patch.setattr(windows, "window_program", stated)
    patch.setattr(solver, "solve", solved)
    patch.setattr(JointWindows, "_place", placed)
    drawn = JointWindows(task, Random(seed), solver)
    for _ in range(count):
        points.clear()
        drawn.improve(HANGS_S)
        if points:
            order, moves = points[0]
            yield _Decided(programs[-1], objectives[-1] * programs[-1].unit_ns, order, moves)


def test_what_a_point_says_fits_and_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes as `within` and the simulator count them, time as the clock has it; where both ways
    share the link, the program may be too hopeful."""
    points = shared = 0
    with MilpSolver() as solver:
        for seed in range(30):
            if (made := random_task(seed)) is None:
                continue
            task, given = made
            assert isinstance(given, Feasible)
            inst = task.instance
            task.try_moves(*moves_of(inst, given.schedule))
            with monkeypatch.context() as patch:
                for point in decided(task, patch, seed, solver, 4):
                    assert is_valid(inst, point.order)
                    frame = Frame.of(inst, point.order)
                    assert within(inst, frame, point.moves, task.task.limit_bytes)
                    takes = time_ns(frame.times, point.moves, inst.program.target)
                    if inst.program.target.shared_bytes_per_s is None:
                        assert takes <= point.objective_ns + 0.5, seed
                        points += 1
                    else:
                        shared += 1
    assert points > 8
    assert shared > 2


def every_choice(
    plan: PlanEvents, detours: Sequence[Detour]
) -> Iterator[tuple[Order, Sequence[Move]]]:
    """Whatever a window may run and move, by plain enumeration."""
    optional = [e for e, event in enumerate(plan.events) if event.optional]
    subsets = joined.from_iterable(combinations(optional, n) for n in range(len(optional) + 1))
    ways: list[list[Taken | None]] = [
        [None, *((g, f, i) for f in g.frees for i in g.issues if f < i)] for g in detours
    ]
    choices = list(product(*ways))
    for subset in subsets:
        runs = set(subset)
        for choice in choices:
            taken = [way for way in choice if way is not None]
            if any(
                runs & set(g.against) or (g.needs >= 0 and g.needs not in runs) for g, _, _ in taken
            ):
                continue
            overlapping = any(
                a.anode == b.anode and a.made < b.back and b.made < a.back
                for (a, _, _), (b, _, _) in combinations(taken, 2)
            )
            if not overlapping:
                yield plan.plan_of(runs, taken)


@pytest.mark.parametrize(("rate", "part", "issue"), [(0.5, 0.5, 0), (2.0, 0.5, 0), (1.0, 0.4, 3)])
def test_the_program_finds_the_best_of_all_choices(rate: float, part: float, issue: int) -> None:
    program = linked(chain(4, seed=2), rate)
    program = replace(program, target=replace(program.target, copy_issue_ns=issue))
    budget = part_of(program, part)
    task = CopyTask(Task.of(program, budget, "test", monotonic() + ENDLESS_S))
    inst = task.instance
    given = parse_planner("offload-greedy").plan(program, budget)
    assert isinstance(given, Feasible)
    order, moves = moves_of(inst, given.schedule)
    last = max(inst.capture)
    plan = PlanEvents(inst, order, moves, Window({last: [0, 1], last - 1: [0, 1, 2]}))
    moved = {move.gap.anode for move in moves}
    detours = [detour for a in sorted(moved)[:3] for detour in plan.open(a)]
    detours = [replace(g, frees=g.frees[:3], issues=g.issues[-3:]) for g in detours]
    detours += [plan.fixed(move) for move in moves if move.gap.anode in sorted(moved)[3:]]
    best = None
    for other, others in every_choice(plan, detours):
        frame = Frame.of(inst, other) if is_valid(inst, other) else None
        if frame is not None and within(inst, frame, others, budget.bytes):
            takes = time_ns(frame.times, others, program.target)
            best = takes if best is None else min(best, takes)
    stated = window_program(
        inst, program.target, plan.events, detours, budget.bytes, 4 * given.time_ns
    )
    with MilpSolver() as solver:
        answer = solver.solve(stated.milp, HANGS_S)
    if best is None:
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal"
    exact_ns = round(answer.objective * stated.unit_ns)
    assert exact_ns == best
    assert best <= given.time_ns


def test_the_host_is_in_the_program() -> None:
    """With room for one of two tensors on the host, both are not there at once."""
    program = linked(chain(6), 3.0)
    budget = part_of(program, 0.4)
    given = parse_planner("offload-greedy").plan(program, budget)
    assert isinstance(given, Optimal | Feasible)
    need = simulate(program, given.schedule).host_peak_bytes
    tight = replace(program, target=replace(program.target, host_bytes=need // 2))
    poor = parse_planner("dtr{rounds=0}").plan(tight, budget)
    assert isinstance(poor, Feasible)
    result = parse_planner("polish{of=dtr{rounds=0}, offload=true}").plan(
        tight, budget, time_limit_s=ENDLESS_S
    )
    trace = holds(tight, budget, result)
    assert 0 < trace.host_peak_bytes <= need // 2
    assert result.time_ns < poor.time_ns  # type: ignore[union-attr]


INNER = ["autocapper", "offload-greedy", "pofo", "vdnn", "opportunist"]


@pytest.mark.parametrize("inner", default_only(INNER, ["vdnn", "opportunist"]))
def test_polish_is_never_slower_and_its_plans_are_proven(inner: str) -> None:
    gained = 0
    for seed, rate, part in ((1, 0.1, 0.3), (2, 0.5, 0.5)):
        program = linked(chain(9, seed=seed), rate)
        budget = part_of(program, part)
        given = parse_planner(inner).plan(program, budget)
        result = parse_planner(f"polish{{of={inner}}}").plan(
            program, budget, time_limit_s=ENDLESS_S
        )
        if isinstance(given, Infeasible):
            assert result == given
            continue
        holds(program, budget, result)
        assert isinstance(given, Optimal | Feasible)
        assert isinstance(result, Optimal | Feasible)
        assert result.time_ns <= given.time_ns
        gained += result.time_ns < given.time_ns
        assert isinstance(verify(program, result.schedule, (budget,)), ProvenPlan)
    assert gained or inner in ("autocapper", "pofo")


def test_windows_add_copies_where_they_are_asked_for() -> None:
    """The plan of a planner that only recomputes, on a target with a link."""
    program = linked(chain(9, seed=4), 0.7)
    budget = part_of(program, 0.35)
    alone = parse_planner("dtr{rounds=0}").plan(program, budget)
    assert isinstance(alone, Feasible)
    plain = parse_planner("polish{of=dtr{rounds=0}}").plan(program, budget)
    assert isinstance(plain, Optimal | Feasible)
    assert not plain.schedule.has_copies
    text = "polish{of=dtr{rounds=0}, offload=true}"
    mixed = parse_planner(text).plan(program, budget, time_limit_s=ENDLESS_S)
    holds(program, budget, mixed)
    assert isinstance(mixed, Optimal | Feasible)
    assert mixed.schedule.has_copies
    assert mixed.time_ns < alone.time_ns


def test_whether_polish_copies() -> None:
    assert makes_copies(parse_planner("polish{of=pofo}"))
    assert not makes_copies(parse_planner("polish{of=dtr}"))
    assert makes_copies(parse_planner("polish{of=dtr, offload=true}"))
    # Without a link there is nothing to copy over: as without the option.
    program = chain(9)
    budget = part_of(program, 0.5)
    result = parse_planner("polish{of=dtr{rounds=0}, offload=true}").plan(program, budget)
    holds(program, budget, result)
    assert isinstance(result, Optimal | Feasible)
    assert not result.schedule.has_copies


@pytest.mark.parametrize(("said", "passed_on"), [(Optimal, Feasible), (TimedOut, TimedOut)])
def test_the_bound_of_a_planner_without_copies_is_not_passed_on(
    said: type[Optimal | TimedOut], passed_on: type[Feasible | TimedOut]
) -> None:
    program = linked(chain(9), 1e-9)
    budget = part_of(program, 0.5)
    result = Polish(of=SaysBest(said), offload=True).plan(program, budget, time_limit_s=ENDLESS_S)
    assert isinstance(result, passed_on)
    assert result.lower_bound_ns == Instance.of(program, "activation").base_time_ns


@dataclass(frozen=True)
class SaysBest(Stub):
    """The plan of dtr, called the best of all that do not copy."""

    said: type[Optimal | TimedOut]
    name: ClassVar[str] = "says-best"

    def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
        result = parse_planner("dtr{rounds=0}").plan(program, budget)
        assert isinstance(result, Feasible)
        return self.said(result.schedule, result.time_ns, result.time_ns)


def test_answers_do_not_hang_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan where every window takes ten times as long."""
    program = linked(chain(9, seed=4), 0.5)
    budget = part_of(program, 0.5)
    planner = parse_planner("polish{of=offload-greedy, seed=3}")
    one = planner.plan(program, budget, time_limit_s=ENDLESS_S)
    late = iter(range(10**6))
    monkeypatch.setattr(
        "remat_compile.planners.polish.polish.monotonic", lambda: monotonic() + next(late) / 10
    )
    other = planner.plan(program, budget, time_limit_s=ENDLESS_S)
    assert one == other


def test_no_time_returns_the_other_planners_answer() -> None:
    program = linked(chain(9), 0.5)
    budget = part_of(program, 0.5)
    given = parse_planner("offload-greedy").plan(program, budget)
    result = parse_planner("polish{of=offload-greedy}").plan(program, budget, time_limit_s=0)
    assert result == given or isinstance(result, TimedOut)


@dataclass(frozen=True)
class ByHand(Stub):
    """A schedule that was written down."""

    name: ClassVar[str] = "by-hand"
    copies: ClassVar[bool] = True
    schedule: Schedule

    def answer(self, program: Program, budget: Budget | None, limit_s: float) -> Any:
        return Feasible(self.schedule, simulate(program, self.schedule).time_ns, None)


def test_steps_in_other_places_are_read_too() -> None:
    """A copy back that is issued at once, and a tensor that is freed before it must be."""
    program = linked(chain(9), 1.0)
    budget = part_of(program, 0.5)
    given = parse_planner("offload-greedy").plan(program, budget)
    assert isinstance(given, Feasible)
    steps = list(given.schedule.steps)
    # Frees of what is not moved stand one computation later than they may.
    moved = {step.anode for step in steps if type(step).__name__ == "Offload"}
    k = next(
        i
        for i, step in enumerate(steps)
        if isinstance(step, Free) and step.anode not in moved and isinstance(steps[i + 1], Compute)
    )
    steps[k], steps[k + 1] = steps[k + 1], steps[k]
    schedule = replace(given.schedule, steps=tuple(steps))
    trace = simulate(program, schedule)
    loose = Budget(max(trace.activation_peak_bytes, budget.bytes), "activation")
    result = Polish(of=ByHand(schedule)).plan(program, loose, time_limit_s=ENDLESS_S)
    assert holds(program, loose, result).time_ns <= trace.time_ns


def test_the_course_of_a_step() -> None:
    """Stalls lie between the computations, and all of them are in the time."""
    for seed in range(20):
        if (made := random_task(seed)) is None:
            continue
        task, given = made
        assert isinstance(given, Feasible)
        order, moves = moves_of(task.instance, given.schedule)
        times = Frame.of(task.instance, order).times
        course = course_of(times, moves, task.instance.program.target)
        assert course.time_ns == given.time_ns == sum(times) + sum(course.stalls_ns.values())
        starts = course.starts_ns(times)
        assert starts[-1] == course.time_ns
        assert all(b - a >= ns for (a, b), ns in zip(pairwise(starts), times, strict=True))
