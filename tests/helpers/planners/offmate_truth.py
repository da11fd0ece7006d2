"""The truth about small steps of `planners/offmate`: every plan for whole tensors, tried."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from remat_compile.ir.program import Target
from remat_compile.planners.offmate.blocks.clock import time_ns
from remat_compile.planners.offmate.blocks.courses import (
    Course,
    Stay,
    StepPlan,
    bytes_T,
    gap_after,
    tensors_of,
)
from remat_compile.planners.offmate.blocks.instance import (
    Group,
    Option,
    Rates,
    StepInstance,
    Tensor,
)


def small_step(seed: int, blocks: int, *, states: float, cpu: bool, options: int) -> StepInstance:
    """A step of a few blocks, one tensor each; bytes and nanoseconds of two digits."""
    rng = random.Random(seed)

    def block(i: int) -> tuple[Option, ...]:
        time, act = rng.randint(20, 60), rng.randint(10, 40)
        keep = Option("keep", time, 2 * time, act, act, act + 5)
        again = Option("recompute", time, 3 * time, 0, 8, act + 5)
        sent = Option("offload", time, 2 * time, 0, act, act + 5, ((time // 2, act),))
        last = i >= blocks - 2
        return (keep, again, sent)[: min(options, 2 if last else 3)]

    sizes = [rng.randint(20, 60) for _ in range(blocks)]
    groups = tuple(Group((Tensor(f"w{i}", n, n),), (i,)) for i, n in enumerate(sizes))
    interface = tuple(5 * (min(i, 2 * blocks - 1 - i) + 1) for i in range(2 * blocks))
    target = Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9)
    rates = Rates(4e9, rng.choice([0.3e9, 1e9, 3e9]), states)
    rows = tuple(block(i) for i in range(blocks))
    return StepInstance(rows, groups, interface, target, rates, cpu_updates=cpu)


def everything_there(instance: StepInstance, options: tuple[int, ...]) -> StepPlan:
    """Nothing leaves the device, which updates all."""
    return StepPlan(options, tuple(Course(w, tensor) for w, tensor in tensors_of(instance)))


def stays(
    instance: StepInstance, steps: list[list[int]], last: int, *, free: bool
) -> Iterator[Stay]:
    """All stays with at most one absence in each of the gaps, whose last steps are the uses behind
    them; `free`: the host has a copy."""
    count = instance.steps

    def ways(gap: list[int]) -> list[tuple[frozenset[int], frozenset[int]]]:
        there: list[tuple[frozenset[int], frozenset[int]]] = [(frozenset(), frozenset())]
        for begin, end in combinations(range(len(gap)), 2):
            there.append((frozenset(gap[begin:end]), frozenset({gap[end]})))
        return there

    for chosen in product(*map(ways, steps)):
        absent = frozenset().union(*(a for a, _ in chosen))
        fetched = frozenset().union(*(f for _, f in chosen))
        if free or not absent:
            yield Stay(absent, fetched)
            continue
        first = min((t - last) % count for t in absent)
        for n in range(first):
            yield Stay(absent, fetched, (last + n) % count)


def courses(instance: StepInstance, w: int) -> Iterator[Course]:
    group = instance.groups[w]
    (tensor,) = group.tensors
    last, count = group.last_grad(instance.blocks), instance.steps
    between = list(group.between(instance.blocks))
    gaps = [
        _with_use(gap_after(group, instance.blocks, use), count)
        for use in group.uses(instance.blocks)
    ]
    turn = [(last + n) % count for n in range(1, count + 1)]
    for weight in stays(instance, gaps, last, free=False):
        pages = stays(instance, [turn], last, free=False) if instance.rates.states else [Stay()]
        for states in pages:
            yield Course(w, tensor, weight, states)
    if not instance.cpu_updates:
        return
    for sent, updated, back in combinations([last, *between, group.first], 3):
        if updated not in between:
            continue
        absent = set([*between, group.first][: [*between, group.first].index(back)])
        others = [gap for gap in gaps if not set(gap) & set(between)]
        for stay in stays(instance, others, last, free=True):
            weight = Stay(stay.absent | absent, stay.fetched | {back})
            yield Course(w, tensor, weight, grad_sent=sent, updated=updated)


def _with_use(gap: list[int], count: int) -> list[int]:
    return [*gap, (gap[-1] + 1) % count] if gap else []


def least_time_ns(instance: StepInstance) -> int | None:
    """The least time of all plans for whole tensors; None where none fits."""
    best: int | None = None
    every = [list(courses(instance, w)) for w in range(len(instance.groups))]
    for options in product(*(range(len(some)) for some in instance.options_L)):
        alone = np.array(bytes_T(instance, StepPlan(options, ())))
        held = [
            [np.array(bytes_T(instance, StepPlan(options, (one,)))) - alone for one in some]
            for some in every
        ]
        for chosen in product(*(range(len(some)) for some in every)):
            total = alone + sum(row[k] for row, k in zip(held, chosen, strict=True))
            if total.max() <= instance.memory_bytes:
                plan = StepPlan(
                    options, tuple(some[k] for some, k in zip(every, chosen, strict=True))
                )
                takes = time_ns(instance, plan)
                best = takes if best is None else min(best, takes)
    return best


def partition_step(numbers: list[int]) -> StepInstance:
    """Zhao 2024, theorem 4.2.1: 3 m numbers of sum m V. The step takes 2 m units of time if and
    only if they are in m parts of sum V. The forward of m units is m blocks here, since
    bytes are taken and given back between steps."""
    m = len(numbers) // 3
    part, unit = sum(numbers) // m, 10**6

    def block(forward: int, backward: int) -> tuple[Option, ...]:
        return (Option("keep", forward * unit, backward * unit, 0, 0, 0),)

    rows = [block(0, i % 2) for i in range(2 * m)]
    rows += [block(1, 0)] * m + [block(0, 0)] * (3 * m)
    groups = [Group((Tensor(f"w{i}", part, part),), (i,)) for i in range(0, 2 * m, 2)]
    groups += [Group((Tensor(f"x{i}", n, n),), (3 * m + i,)) for i, n in enumerate(numbers)]
    target = Target(
        memory_bytes=(m + 1) * part, d2h_bytes_per_s=1000 * part, h2d_bytes_per_s=1000 * part
    )
    rates = Rates(states=0)
    return StepInstance(
        tuple(rows), tuple(groups), (0,) * (2 * len(rows)), target, rates, cpu_updates=False
    )
