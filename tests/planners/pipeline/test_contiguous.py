"""1F1B* and the exact program over contiguous partitions, beside brute force and the theorems of
Shilova 2021, chapter 5."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from helpers.planners.pipelines import (
    layers_of,
    partitions,
    random_layers,
    theorem_17,
    with_recompute,
)
from remat_compile.planners.pipeline.layers import Layers, Range, StageWay, ceil_div
from remat_compile.planners.pipeline.pattern import groups, joined, least_period, one_f_one_b_star
from remat_compile.planners.pipeline.search.contiguous import Contiguous, ContiguousSearch


def test_facts_about_1f1b() -> None:
    """Valid, no two things at once on a stage, and the closed form of lifetimes."""
    rng = random.Random(1)
    for _ in range(3000):
        n = rng.randint(1, 9)
        forward = [rng.randint(1, 20) for _ in range(n)]
        backward = [rng.randint(1, 30) for _ in range(n)]
        loads = [f + b for f, b in zip(forward, backward, strict=True)]
        period = rng.randint(max(loads), sum(loads))
        pattern, groups_S = one_f_one_b_star(forward, backward, period), groups(loads, period)
        assert groups_S is not None
        starts, backs = pattern.forward_ns_S, pattern.backward_ns_S
        for s in range(n):
            if s < n - 1:
                assert backs[s] >= backs[s + 1] + backward[s + 1]
            offset = (backs[s] - starts[s]) % period
            assert forward[s] <= offset <= period - backward[s]
            last = max(k for k in range(n) if groups_S[k] == groups_S[s])
            lifetime = backs[s] + backward[s] - starts[s]
            assert lifetime == (groups_S[s] - 1) * period + sum(loads[s : last + 1])
            assert ceil_div(lifetime, period) == groups_S[s]


def test_lifetimes_give_the_groups_and_grow_with_both() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        loads = [rng.randint(1, 20) for _ in range(rng.randint(1, 9))]
        period = rng.randint(max(loads), sum(loads))
        lifetime, found = 0, []
        for load in reversed(loads):
            lifetime = joined(lifetime, load, period)
            found.append(ceil_div(lifetime, period))
        assert found[::-1] == groups(loads, period)
        x, y = rng.randint(0, 90), rng.randint(1, period)
        more_x, more_y = rng.randint(x, 95), rng.randint(y, period)
        assert joined(x, y, period) <= joined(more_x, y, period)
        assert joined(x, y, period) <= joined(x, more_y, period)


def brute_force(layers: Layers) -> int | None:
    periods = [least_period(layers, stages) for stages in partitions(layers)]
    return min((period for period in periods if period is not None), default=None)


def test_equals_brute_force_over_partitions() -> None:
    rng = random.Random(3)
    infeasible = 0
    for _ in range(400):
        layers = random_layers(rng)
        found, least = ContiguousSearch(layers).least(), brute_force(layers)
        if found is None:
            assert least is None
            infeasible += 1
            continue
        assert found.period_ns == least
        assert least_period(layers, found.stages) == least
    assert 50 < infeasible < 300


def test_few_microbatches_need_no_more_copies_than_there_are() -> None:
    layers = layers_of(
        [1] * 4, [1] * 4, activations=[5] * 5, ranks=4, memory=2 * 5 + 20, microbatches=2
    )
    found = ContiguousSearch(layers).least()
    assert found is not None
    assert found.period_ns == 2
    unbounded = ContiguousSearch(replace(layers, microbatches=None)).least()
    assert unbounded is not None
    assert unbounded.period_ns > 2


def test_recompute_takes_the_best_of_all_ways_of_all_stages() -> None:
    """For each period, beside the product of all partitions and all ways of their stages."""
    rng = random.Random(4)
    gained = 0
    for _ in range(120):
        layers = with_recompute(rng, random_layers(rng, most=5, ranks=rng.randint(1, 3)))
        search = ContiguousSearch(layers)
        found = search.least()
        least = None
        for stages in partitions(layers):
            choices = [[]]
            for i, j in stages:
                choices = [[*some, way] for some in choices for way in layers.ways(i, j)]
            for ways in choices:
                period = _least_with(layers, stages, ways)
                if period is not None and (least is None or period < least):
                    least = period
        assert (found.period_ns if found else None) == least
        plain = ContiguousSearch(replace(layers, inner_bytes_L=())).least()
        gained += least is not None and (plain is None or least < plain.period_ns)
    assert gained > 10


def test_ways_of_a_stage_by_walking_its_backward() -> None:
    """Bytes of each way, step by step: what a segment drops is there during its backward alone."""
    rng = random.Random(14)
    seen = 0
    for _ in range(40):
        layers = with_recompute(rng, random_layers(rng, most=5, ranks=rng.randint(1, 3)))
        n = len(layers)
        ways = list(layers.ways(0, n))
        for faster, way in pairwise(ways):
            assert faster.load_ns <= way.load_ns
            assert way.keep_bytes < faster.keep_bytes or way.extra_bytes < faster.extra_bytes
        for way in ways:
            starts = {a for a, _ in way.remade}
            again = {layer for a, b in way.remade for layer in range(a, b)}
            inputs = [k - x for k, x in zip(layers.kept_bytes_L, layers.inner_bytes_L, strict=True)]
            held = [
                layers.kept_bytes_L[x] if x not in again
                else max(inputs[x], layers.activation_bytes_B[x]) if x in starts else 0
                for x in range(n)
            ]  # fmt: skip
            assert sum(held) == way.keep_bytes
            most = now = sum(held)
            for x in reversed(range(n)):
                for a, b in way.remade:
                    if x == b - 1:
                        now += sum(layers.kept_bytes_L[a:b]) - inputs[a]
                        most = max(most, now)
                if x in again:
                    now -= layers.kept_bytes_L[x] - (inputs[x] if x in starts else 0)
                now -= held[x] if x not in again or x in starts else 0
            assert now == 0
            assert most == way.keep_bytes + way.extra_bytes
            load = layers.load_ns(0, n) + sum(layers.forward_ns_L[x] for x in again)
            assert load == way.load_ns
            seen += len(way.remade) > 1
    assert seen > 20


def _least_with(layers: Layers, stages: Sequence[Range], ways: Sequence[StageWay]) -> int | None:
    loads: list[int] = []
    for (_, j), way in zip(stages, ways, strict=True):
        loads += [way.load_ns, layers.transfer_ns(j)]
    loads.pop()
    n = len(loads)
    for period in sorted({sum(loads[a:b]) for a in range(n) for b in range(a + 1, n + 1)}):
        found = groups(loads, period)
        if found and all(
            layers.held_bytes(i, j) + g * way.keep_bytes + way.extra_bytes <= layers.limit_bytes
            for (i, j), way, g in zip(stages, ways, found[::2], strict=True)
        ):
            return period
    return None


def test_a_step_with_a_flush_may_want_a_longer_period() -> None:
    """(m - 1) T + V, beside all periods one by one."""
    rng = random.Random(5)
    longer = 0
    for _ in range(60):
        layers = random_layers(rng, ranks=3, microbatches=4)
        search = ContiguousSearch(layers)
        least, step = search.least(), search.for_step(4)
        if least is None or step is None:
            assert least is None
            assert step is None
            continue
        times = {}
        for period in range(least.period_ns, layers.longest_period_ns + 1):
            some = search.best_for(period)
            assert some is not None
            times[period] = 3 * period + some.lifetime_ns
        assert 3 * step.period_ns + step.lifetime_ns == min(times.values())
        longer += step.period_ns > least.period_ns
    assert longer > 3


@pytest.mark.parametrize(
    ("costs", "ranks", "period"), [(theorem_17(2), 5, 16), (theorem_17(3), 7, 36)]
)
def test_theorem_17_contiguous(costs: list[int], ranks: int, period: int) -> None:
    found = ContiguousSearch(layers_of(costs, ranks=ranks)).least()
    assert found is not None
    assert found.period_ns == period


def test_lemma_10_no_contiguous_pipeline_fits() -> None:
    layers = layers_of([1, 2, 1], weights=[1, 2, 1], ranks=2, memory=2)
    assert ContiguousSearch(layers).least() is None


def test_theorem_18_contiguous() -> None:
    k = 3
    layers = layers_of(
        [1] * k + [k] + [k - 1] * k, weights=[2] * k + [3] + [1] * k, ranks=k + 2, memory=3
    )
    found = ContiguousSearch(layers).least()
    assert found is not None
    assert found.period_ns == 6


def test_theorem_16_is_the_least_of_1_periodic_schedules() -> None:
    """Bounds (k, k, k - 1, .., 1) on what is in flight: a period of 4, where k-periodic ones reach
    2 (k + 1) / k."""
    for k in (2, 3, 4):
        layers = layers_of(
            [1] * (k + 1),
            [1] * (k + 1),
            activations=[1] * (k + 2),
            weights=[1, 1, *range(2, k + 1)],
            ranks=k + 1,
            memory=k + 1,
        )
        free = replace(layers, activation_bytes_B=(0,) * (k + 2), gradient_bytes_B=(0,) * (k + 2))
        stages = tuple((i, i + 1) for i in range(k + 1))
        assert least_period(free, stages) == 4


def test_150_layers_on_8_ranks_ask_few_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar of a second is in docs/notes/pipelines.md; this holds the number of steps."""
    rng = random.Random(6)
    n = 150
    layers = layers_of(
        [rng.randint(10**5, 10**7) for _ in range(n)],
        [rng.randint(10**5, 10**7) for _ in range(n)],
        activations=[rng.randint(1, 8) << 20 for _ in range(n + 1)],
        ranks=8,
        memory=3 << 30,
        link=12,
    )
    search = ContiguousSearch(layers)
    asked: list[int] = []
    real = search.best_for

    def counted(period_ns: int) -> Contiguous | None:
        asked.append(period_ns)
        return real(period_ns)

    monkeypatch.setattr(search, "best_for", counted)
    found = search.least()
    assert found is not None
    assert len(asked) < 45
    assert found.period_ns >= layers.least_period_ns
