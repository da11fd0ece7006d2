"""The bounds of single moments never exceed the time of a schedule, in whatever order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.exact_claims import budget_at, reachable
from helpers.planners.exhaustive_orders import fastest_ns
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer, unet
from remat_compile.ir.program import Program
from remat_compile.planners import Optimal, parse_planner
from remat_compile.planners.bounds.moments import cuts_over, least_bytes
from remat_compile.planners.bounds.relaxation import lower_bound_ns, moments_ns
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver


def shuffled(program: Program, rng: Random) -> Program:
    """The same step with its computations in another order that respects what they read,
    what an accumulate ends, the loss and the stream of random numbers."""
    inst = Instance.of(program, "activation")
    count = len(inst.names_C)
    before: list[set[int]] = [set() for _ in range(count)]
    fixed = [c for c in range(count) if inst.token_C[c] >= 0 or c == inst.loss]
    for a, b in pairwise(fixed):
        before[b].add(a)
    for c in range(count):
        before[c] |= {inst.writer_A[a] for a in inst.reads_C[c] if inst.writer_A[a] >= 0}
        if inst.ends_C[c] >= 0:
            others = (d for d in range(count) if inst.ends_C[c] in inst.reads_C[d])
            before[c] |= {d for d in others if d != c}
        if inst.phase_C[c] == "fwd":
            before[inst.loss].add(c)
    done: list[int] = []
    while len(done) < count:
        ready = [c for c in range(count) if c not in done and before[c] <= set(done)]
        done.append(rng.choice(ready))
    cnodes = tuple(program.graph.cnodes[c] for c in done)
    return replace(program, graph=replace(program.graph, cnodes=cnodes))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from(["device", "activation"]),
    st.floats(0, 1),
)
def test_no_schedule_is_faster(
    solver: MilpSolver, seed: int, nodes: int, kind: str, share: float
) -> None:
    program = random_dag(seed, nodes)
    instance = Instance.of(program, kind)  # type: ignore[arg-type]
    limit = budget_at(program, share, instance.kind).bytes
    ordered, free = (moments_ns(instance, limit, solver, 20.0, any_order=o) for o in (False, True))
    assert instance.base_time_ns <= free <= ordered
    fastest = fastest_ns(instance, limit)
    assert fastest is None or ordered <= fastest
    for turn in range(6):
        other = Instance.of(shuffled(program, Random(turn)), instance.kind)
        fastest = fastest_ns(other, limit)
        assert fastest is None or free <= fastest


@pytest.mark.parametrize("share", [0.6, 0.2])
def test_effects_and_random_numbers_are_bounded_too(solver: MilpSolver, share: float) -> None:
    for program in (stochastic(1), residual(1), unet(1), chain(4, seed=5)):
        limit = budget_at(program, share).bytes
        for turn in range(4):
            other = program if not turn else shuffled(program, Random(turn))
            instance = Instance.of(other, "activation")
            fastest = fastest_ns(instance, limit)
            if fastest is not None:
                assert moments_ns(instance, limit, solver, 20.0) <= fastest
                assert (
                    moments_ns(
                        Instance.of(program, "activation"), limit, solver, 20.0, any_order=True
                    )
                    <= fastest
                )


def test_the_bound_says_much_where_one_moment_decides(solver: MilpSolver) -> None:
    """Half of the best plan's overhead at least, on blocks of a transformer."""
    program = transformer(1)
    instance = Instance.of(program, "activation")
    limit = reachable(program, 0.5).bytes
    found = parse_planner("rk-checkmate").plan(program, reachable(program, 0.5))
    assert isinstance(found, Optimal)
    extra = moments_ns(instance, limit, solver, 20.0) - instance.base_time_ns
    assert 0.5 * (found.time_ns - instance.base_time_ns) <= extra
    assert moments_ns(instance, limit, solver, 20.0) <= found.time_ns


def test_larger_graphs_have_a_bound(solver: MilpSolver) -> None:
    program = chain(120, seed=1)
    instance = Instance.of(program, "activation")
    limit = reachable(program, 0.3).bytes
    assert len(instance.names_C) > 150
    assert lower_bound_ns(instance, limit, solver) > instance.base_time_ns


def test_moments_that_fit_ask_for_nothing() -> None:
    instance = Instance.of(chain(6), "activation")
    peak = instance.peak(instance.capture)
    assert cuts_over(instance, peak) == []
    assert cuts_over(instance, peak - 1) != []
    assert max(least_bytes(instance)) + instance.base_bytes <= peak
