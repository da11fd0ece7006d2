"""Bounds on the time of plans that copy to the host, against plans and exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from helpers.planners.budgets import share
from helpers.planners.copying_truth import least_time_ns
from helpers.planners.graphs import chain, random_dag, residual, transformer, unet
from helpers.planners.matrix import COPYING, linked
from helpers.slow import default_only
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.bounds.links import joint_ns, joint_program
from remat_compile.planners.bounds.moving import moving_ns
from remat_compile.planners.bounds.subset_sums import SubsetSums
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline


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
        [("unet", 3.0), ("random", 3.0)],
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
