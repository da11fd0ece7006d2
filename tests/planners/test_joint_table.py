"""The tables of recompute and offload against plain recursion, and at both ends of the link."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random

import pytest

from helpers.planners.exhaustive_chains import ThesisChain
from helpers.planners.exhaustive_joint import least_backward, least_time
from remat_compile.planners.chains.recurrences.persistent import Persistent
from remat_compile.planners.offload.tables.joint_table import JointTable, LinkRates


def random_chain(seed: int, layers: int, spread: int = 5) -> ThesisChain:
    rng = Random(seed)
    a = [0, *(rng.randint(1, 4) for _ in range(layers)), 0]
    a_bar = [0, *(a[i] + rng.randint(0, spread) for i in range(1, layers + 1)), 0]
    delta = [*(rng.randint(0, 2) for _ in range(layers + 1)), 0]
    count = layers + 1
    times = [[rng.randint(1, 9) for _ in range(count)] for _ in range(2)]
    extra = [[rng.randint(0, 2) for _ in range(count)] for _ in range(2)]
    return ThesisChain(a, a_bar, delta, *times, *extra)


def table_of(chain: ThesisChain, top: int, rate: float) -> JointTable:
    return JointTable(chain.stages(), 1, top, LinkRates(rate, rate), inf)


@pytest.mark.parametrize("seed", range(12))
def test_the_tables_equal_plain_recursion(seed: int) -> None:
    chain = random_chain(seed, 3 + seed % 2, spread=14)
    top = 34
    table = table_of(chain, top, 1.0)
    for memory in range(6, top + 1):
        assert table.time_ns(memory) == pytest.approx(least_time(chain.stages(), memory)), memory


@pytest.mark.parametrize("seed", range(4))
def test_the_tables_of_the_backward_equal_plain_recursion(seed: int) -> None:
    chain = random_chain(50 + seed, 3, spread=6)
    top = 20
    table, stages = table_of(chain, top, 1.0), chain.stages()
    for s in range(3):
        for t in range(s, 3):
            for held in range(0, top + 1, 2):
                for moving in range(0, top + 1, 3):
                    time_ns = float(table.inner[s][t - s][held, moving])
                    wanted = least_backward(stages, top, s, t, held, moving)
                    assert time_ns == pytest.approx(wanted), (s, t, held, moving)


@pytest.mark.parametrize("seed", range(6))
def test_without_bandwidth_it_is_rotor(seed: int) -> None:
    chain = random_chain(100 + seed, 5)
    top = 24
    table, rotor = table_of(chain, top, 1e-12), Persistent(chain.stages(), 1, top)
    for memory in range(top + 1):
        alone = rotor.time_ns(memory)
        time_ns = table.time_ns(memory)
        assert time_ns == pytest.approx(alone) or (alone == inf and time_ns > 1e9), memory


def test_more_bandwidth_or_memory_is_never_slower() -> None:
    chain = random_chain(7, 5)
    times = [[table_of(chain, 24, rate).time_ns(m) for m in range(25)] for rate in (0.5, 1.0, 4.0)]
    for row in times:
        assert row == sorted(row, reverse=True)
    for slow, fast in pairwise(times):
        assert all(f <= s for s, f in zip(slow, fast, strict=True))
    base = sum(chain.u_f) + sum(chain.u_b)
    assert times[-1][-1] == pytest.approx(base)


def test_the_schedule_is_that_of_the_table() -> None:
    chain = random_chain(3, 4)
    table = table_of(chain, 20, 1.0)
    for memory in range(8, 21):
        if table.time_ns(memory) == inf:
            continue
        operations, moved = table.schedule(memory)
        backs = [op.stage for op in operations if op.kind == "back"]
        assert backs == sorted(backs, reverse=True) == list(range(len(chain.u_f)))[::-1]
        assert all(0 < s < len(chain.u_f) for s, _ in moved)
