"""MadPipe's first phase by labels, and the integer program for a given allocation and period."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from time import monotonic

import pytest

from helpers.planners.pipelines import layers_of, random_layers, theorem_17, with_recompute
from remat_compile.planners.pipeline.contract import plain_ways
from remat_compile.planners.pipeline.layers import Layers, Range, StageWay
from remat_compile.planners.pipeline.pattern import Pattern, least_period
from remat_compile.planners.pipeline.search.contiguous import ContiguousSearch
from remat_compile.planners.pipeline.search.labels import LabelSearch
from remat_compile.planners.pipeline.search.periodic_program import PeriodicProgram
from remat_compile.planners.solvers import MilpSolver


@pytest.fixture(scope="module")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as lent:
        yield lent


def test_theorems_with_a_special_rank() -> None:
    assert LabelSearch(layers_of(theorem_17(2), ranks=5)).least() == 11
    assert LabelSearch(layers_of(theorem_17(3), ranks=7)).least() == 25
    lemma_10 = layers_of([1, 2, 1], weights=[1, 2, 1], ranks=2, memory=2)
    search = LabelSearch(lemma_10)
    assert search.least() == 2
    (found,) = search.allocations(2)
    assert found.stages == ((0, 1), (1, 2), (2, 3))
    assert found.ranks == (0, 1, 0)
    k = 3
    theorem_18 = layers_of(
        [1] * k + [k] + [k - 1] * k, weights=[2] * k + [3] + [1] * k, ranks=k + 2, memory=3
    )
    assert LabelSearch(theorem_18).least() == 4


def test_a_grid_loses_little_and_never_gains() -> None:
    rng = random.Random(7)
    for _ in range(60):
        layers = random_layers(rng)
        exact, rounded = LabelSearch(layers).least(), LabelSearch(layers, grid=40).least()
        assert rounded is None or (exact is not None and exact <= rounded)


def test_the_program_is_1f1b_on_contiguous_allocations(solver: MilpSolver) -> None:
    """Theorem 15: no 1-periodic schedule of a contiguous allocation is shorter than 1F1B*."""
    rng = random.Random(8)
    seen = 0
    while seen < 25:
        layers = random_layers(rng, most=5, ranks=5)
        n = rng.randint(1, len(layers))
        cuts = sorted(rng.sample(range(1, len(layers)), n - 1))
        stages = tuple(zip([0, *cuts], [*cuts, len(layers)], strict=True))
        least = least_period(layers, stages)
        program = PeriodicProgram(layers, stages, tuple(range(n)), plain_ways(layers, stages))
        pattern, decided = program.least(solver, monotonic() + 60)
        assert decided
        assert (pattern.period_ns if pattern else None) == least
        if pattern is not None:
            check_pattern(program, pattern)
            seen += 1


def check_pattern(program: PeriodicProgram, pattern: Pattern) -> None:
    """No two operations on one place at once, the chain in order, bytes within the memory: counted
    from the starts alone, over as many periods as a micro-batch lives."""
    layers, period = program.layers, pattern.period_ns
    operations = program.operations()
    begins = [*pattern.forward_ns_S, *reversed(pattern.backward_ns_S)]
    for o in range(len(begins) - 1):
        assert begins[o + 1] >= begins[o] + operations[o][1]
    for a, (place, ns) in enumerate(operations):
        for b, (other, other_ns) in enumerate(operations):
            if a < b and place is not None and place == other and ns and other_ns:
                offset = (begins[b] - begins[a]) % period
                assert ns <= offset <= period - other_ns
    last = len(operations) - 1
    for rank in set(program.ranks):
        mine = [t for t, r in enumerate(program.ranks) if r == rank]
        held = sum(layers.held_bytes(*program.stages[t]) for t in mine)
        own = [(2 * t, layers.extra_bytes(*program.stages[t])) for t in mine]
        own += [(last - 2 * t, program.ways[t].extra_bytes) for t in mine]
        for o, extra in own:
            far = max(begins) + 2 * period
            now = far - far % period + begins[o] % period
            total = held + extra
            for t in mine:
                began = (now - begins[2 * t]) // period + 1
                ended = (now - begins[last - 2 * t] - operations[last - 2 * t][1]) // period + 1
                total += (began - ended) * program.ways[t].keep_bytes
            assert total <= layers.limit_bytes


def one_special(layers: Layers) -> Iterator[tuple[tuple[Range, ...], tuple[int, ...]]]:
    """All allocations in which one rank at most has several stages."""

    def go(ranks: list[int]) -> Iterator[list[int]]:
        if len(ranks) == len(layers):
            yield ranks
            return
        for r in range(min(layers.ranks, max(ranks, default=-1) + 2)):
            yield from go([*ranks, r])

    for of_layer in go([]):
        stages: list[Range] = []
        ranks: list[int] = []
        for layer, r in enumerate(of_layer):
            if ranks and ranks[-1] == r:
                stages[-1] = (stages[-1][0], layer + 1)
            else:
                stages.append((layer, layer + 1))
                ranks.append(r)
        if sum(ranks.count(r) > 1 for r in set(ranks)) <= 1:
            yield tuple(stages), tuple(ranks)


def with_ways(
    layers: Layers,
) -> Iterator[tuple[tuple[Range, ...], tuple[int, ...], tuple[StageWay, ...]]]:
    """Allocations with one special rank at most, with each choice of ways."""
    for stages, ranks in one_special(layers):
        for ways in product(*(tuple(layers.ways(i, j)) for i, j in stages)):
            yield stages, ranks, ways


@pytest.mark.parametrize("recompute", [False, True])
def test_exact_labels_bound_every_allocation_with_one_special_rank(
    recompute: bool, solver: MilpSolver
) -> None:
    """And every way of its stages, with what each layer needs for itself."""
    rng = random.Random(9)
    seen = contiguous_best = remakes = 0
    while seen < (24 if recompute else 8):
        layers = replace(random_layers(rng, most=4, ranks=2), memory_bytes=rng.randint(14, 60))
        if recompute:
            layers = with_recompute(rng, replace(layers, memory_bytes=rng.randint(30, 60)))
        found = LabelSearch(layers).least()
        best: int | None = None
        for stages, ranks, ways in with_ways(layers):
            program = PeriodicProgram(layers, stages, ranks, ways)
            pattern, decided = program.least(solver, monotonic() + 60, best)
            assert decided
            if pattern is not None:
                check_pattern(program, pattern)
                best, of_best = pattern.period_ns, ways
        if best is None:
            continue
        assert found is not None
        assert found <= best
        contiguous = ContiguousSearch(layers).least()
        contiguous_best += contiguous is not None and contiguous.period_ns == best
        remakes += any(way.remade for way in of_best)
        seen += 1
    assert contiguous_best >= 3
    assert bool(remakes) == recompute


def test_theorems_17_and_18_with_any_allocation(solver: MilpSolver) -> None:
    """Several ranks of several stages: periods of 10 and 3, where one such rank gives 11 and 4 and
    contiguous stages 16 and 6."""
    theorem_18 = layers_of(
        [1] * 3 + [3] + [2] * 3, weights=[2] * 3 + [3] + [1] * 3, ranks=5, memory=3
    )
    for layers, ranks, period in (
        (layers_of(theorem_17(2), ranks=5), (0, 4, 3, 4, 1, 4, 3, 4, 2, 4, 4), 10),
        (theorem_18, (0, 1, 2, 3, 0, 1, 2), 3),
    ):
        merged = [n for n in range(len(ranks)) if not n or ranks[n] != ranks[n - 1]]
        stages = tuple(zip(merged, [*merged[1:], len(ranks)], strict=True))
        of_stage = tuple(ranks[n] for n in merged)
        program = PeriodicProgram(layers, stages, of_stage, plain_ways(layers, stages))
        pattern, decided = program.least(solver, monotonic() + 60)
        assert decided
        assert pattern is not None
        assert pattern.period_ns == period
        check_pattern(program, pattern)


@pytest.mark.parametrize(("numbers", "fits"), [([5, 5, 6], True), ([5, 5, 5, 5, 5, 7], None)])
def test_theorem_14_is_3_partition(
    numbers: list[int], fits: bool | None, solver: MilpSolver
) -> None:
    """A schedule of 2 n V exists if and only if the numbers fall into n parts of V. Where they do
    not, the solver has two seconds, and what it says then is that it does not know."""
    n, total = len(numbers) // 3, 16
    forward = [*[total] * n, *numbers, *[total] * (2 * n)]
    kept = [*[0] * (4 * n), *[1] * (2 * n)]
    layers = replace(
        layers_of(forward, ranks=2, memory=n),
        kept_bytes_L=tuple(kept),
    )
    ranks = [1] * n + [0] * 3 * n + [1, 0] * n
    stages = tuple((i, i + 1) for i in range(len(forward)))
    program = PeriodicProgram(layers, stages, tuple(ranks), plain_ways(layers, stages))
    verdict = program.solve(2 * n * total, solver, 60 if fits else 2)
    if fits:
        assert isinstance(verdict, Pattern)
        check_pattern(program, verdict)
    else:
        assert verdict in ("infeasible", "unknown")
