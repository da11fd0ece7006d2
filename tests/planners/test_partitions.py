"""NP-hard instances, whose least time is known: nothing is below it, and exact methods reach it."""

from __future__ import annotations

import pytest

from helpers.planners.copying_truth import least_time_ns
from helpers.planners.exhaustive_offload import best_of_all_sets
from helpers.planners.partitions import Partition, Released, three, two
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.bounds.links import joint_ns
from remat_compile.planners.bounds.moving import moving_ns
from remat_compile.planners.instance import Instance
from remat_compile.planners.offload.tables.offload_table import Rates, best_sets
from remat_compile.planners.solvers import MilpSolver

YES: list[Partition | Released] = [
    two((2, 2)),
    two((3, 1, 2, 2)),
    two((7, 5, 4, 3, 3)),
    three((2, 2, 2, 1, 3, 2)),
]
NO: list[Partition | Released] = [
    two((3, 3, 2)),
    two((4, 4, 4)),
    two((7, 7, 7, 5)),
    three((9, 9, 6, 6, 6, 6, 6, 6, 6)),
]
YES += [Released((2, 2), 2, 2), Released((3, 4, 3, 2), 6, 2)]
NO += [Released((3, 3, 2), 4, 2), Released((4, 4, 2, 2, 2), 7, 2)]
RELEASED = [Released((2, 2), 2, 2), Released((3, 2), 2, 2)]
MOVING = ("offload-greedy", "vdnn", "tflms", "autoswap")
"""Planners that recompute nothing, of any graph."""


def test_yes_and_no() -> None:
    assert all(instance.least_ns() == instance.compute_ns for instance in YES)
    assert all(instance.least_ns() > instance.compute_ns for instance in NO)


@pytest.mark.parametrize(
    "instance",
    [
        YES[0],
        NO[0],
        NO[1],
        Partition((2, 1, 2, 1), 3, 2),
        Partition((2, 2, 1, 1), 2, 2),
        RELEASED[0],
        RELEASED[1],
    ],
)
def test_the_least_time_is_that_of_the_search(instance: Partition | Released) -> None:
    time_ns = least_time_ns(instance.program(), instance.budget, recompute=False)
    assert time_ns == instance.least_ns()


@pytest.mark.parametrize("instance", [*YES, *NO])
def test_nothing_is_below_the_least_time(instance: Partition | Released) -> None:
    program, least = instance.program(), instance.least_ns()
    of = Instance.of(program, "activation")
    with MilpSolver() as solver:
        bound = joint_ns(of, program.target, instance.budget.bytes, solver, 10.0)
    assert bound <= least
    assert moving_ns(of, program.target, instance.budget.bytes) <= least
    reached = []
    for planner in MOVING:
        result = parse_planner(planner).plan(program, instance.budget)
        if isinstance(result, Optimal | Feasible):
            assert (result.lower_bound_ns or 0) <= least <= result.time_ns, planner
            reached.append(result.time_ns)
    assert reached


@pytest.mark.parametrize(
    "instance", [i for i in (*YES, *NO) if isinstance(i, Partition) and i.groups == 1]
)
def test_the_table_finds_the_best_groups(instance: Partition) -> None:
    made, room = instance.stages()
    best, times = best_of_all_sets(made, room, 1.0)
    # Bytes are given back while they are copied, so that only the end of the step is late.
    over = (instance.least_ns() - instance.compute_ns) // 2
    assert best == instance.compute_ns + over
    sets = list(best_sets(made, room, room, Rates(1.0, 1.0, shared=False), float("inf")))
    assert times[sets[0]] == best
