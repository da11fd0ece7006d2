"""The hierarchy: how a forward is cut, what parts cost, and what puts them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import ceil, log
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.graphs import (
    chain,
    encoder_decoder,
    random_dag,
    residual,
    stochastic,
    transformer,
    unet,
)
from helpers.planners.mixed_steps import mixed_chain, mixed_dag, moe, two_towers
from helpers.planners.thesis_hilp import ThesisProgram
from helpers.slow import default_only
from remat_compile.ir.program import Program
from remat_compile.planners.chains.part import content_key
from remat_compile.planners.hierarchy.partition.children import Limits, children_of
from remat_compile.planners.hierarchy.partition.forward import ForwardGraph
from remat_compile.planners.hierarchy.partition.h_partition import immediate_dominators
from remat_compile.planners.hierarchy.partition.levels import Level, Tree, level_of, tree_of
from remat_compile.planners.hierarchy.reduced.options import offers_of, quick_orders
from remat_compile.planners.hierarchy.reduced.prices import ChildPrices, prices_of
from remat_compile.planners.hierarchy.reduced.rows import ReducedModel, ReducedProgram
from remat_compile.planners.hierarchy.reduced.solve_level import flattened
from remat_compile.planners.instance import Instance, Order
from remat_compile.planners.programs.solve_compact import is_valid
from remat_compile.planners.solvers import MilpSolver

KINDS = ("auto", "dominators", "intervals", "chain")
STEPS = st.builds(
    lambda make, seed, nodes: make(seed, nodes),
    st.sampled_from([mixed_chain, mixed_dag, random_dag]),
    st.integers(0, 10_000),
    st.integers(4, 40),
)


def forward_of(program: Program) -> ForwardGraph:
    return ForwardGraph.of(Instance.of(program, "activation"))


def dominators_by_removal(before: Sequence[Sequence[int]]) -> list[int]:
    """By definition: d dominates x if x cannot be reached without d."""

    def reached(without: int) -> list[bool]:
        seen: list[bool] = []
        for x, some in enumerate(before):
            seen.append(x != without and (not some or any(seen[y] for y in some)))
        return seen

    doms: list[list[int]] = [[] for _ in before]
    for d in range(len(before)):
        for x, seen in enumerate(reached(d)):
            if not seen and x != d:
                doms[x].append(d)
    return [max(ds, default=-1) for ds in doms]


@settings(max_examples=100, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_dominators_are_those_of_the_definition(seed: int, n: int) -> None:
    rng = Random(seed)
    before = [sorted(rng.sample(range(x), rng.randint(0, min(x, 3)))) for x in range(n)]
    assert immediate_dominators(before) == dominators_by_removal(before)


def holds_together(forward: ForwardGraph, groups: Sequence[Sequence[int]]) -> None:
    """A partition, each part convex, all in an order that respects every edge."""
    assert sorted(p for group in groups for p in group) == list(range(len(forward)))
    group_P = {p: g for g, group in enumerate(groups) for p in group}
    for p, before in enumerate(forward.before_P):
        for q in before:
            assert group_P[q] <= group_P[p]  # so no path leaves a group and comes back


@settings(max_examples=150, derandomize=True)
@given(STEPS, st.sampled_from(KINDS), st.integers(2, 16), st.integers(1, 20))
def test_children_are_convex_few_and_in_order(
    program: Program, kind: Any, most: int, leaf: int
) -> None:
    forward = forward_of(program)
    groups = children_of(forward, Limits(most, leaf, kind))
    holds_together(forward, groups)
    assert len(groups) <= max(most, 3)
    assert len(groups) > 1 or len(forward) <= leaf
    assert groups == children_of(forward_of(program), Limits(most, leaf, kind))


GRAPHS: dict[str, Callable[[], Program]] = {
    "chain": lambda: chain(60),
    "uneven chain": lambda: chain(60, seed=3),
    "transformer": lambda: transformer(6),
    "encoder-decoder": lambda: encoder_decoder(12),
    "unet": lambda: unet(12),
    "towers": lambda: two_towers(10),
    "experts": lambda: moe(6),
    "stochastic": lambda: stochastic(12),
    "nothing repeats": lambda: random_dag(5, nodes=80),
}


@pytest.mark.parametrize(
    "graph", default_only(GRAPHS, ["encoder-decoder", "unet", "towers", "experts", "stochastic"])
)
@pytest.mark.parametrize("kind", KINDS)
def test_trees_of_every_kind_of_graph(graph: str, kind: Any) -> None:
    program = GRAPHS[graph]()
    instance = Instance.of(program, "activation")
    tree = tree_of(instance, Limits(children=16, leaf=4, kind=kind))
    n = instance.loss
    assert tree.root.depth <= ceil(log(n, 8)) + 2
    assert all(len(part.children) <= 16 for part in tree.classes)
    assert sorted(c for m in tree.members() for c in m.forward) == list(range(n))
    assert all(len(m.forward) <= 4 for m in tree.members())
    again = tree_of(Instance.of(GRAPHS[graph](), "activation"), Limits(16, 4, kind))
    assert shape(again) == shape(tree)


def shape(tree: Tree) -> list[tuple[tuple[int, ...], ...]]:
    return [(m.forward, m.backward) for m in tree.members()]


def test_a_renamed_step_has_the_same_tree() -> None:
    from remat_compile.ir.text.parser import parse_program
    from remat_compile.ir.text.printer import format_program

    text = format_program(encoder_decoder(8))
    renamed = parse_program(text.replace("%s", "%zz_s").replace("%c", "%aa_c"))
    limits = Limits(children=8, leaf=2)
    first, second = (
        tree_of(Instance.of(p, "activation"), limits) for p in (encoder_decoder(8), renamed)
    )
    assert shape(first) == shape(second)
    assert [content_key(p.instance) for p in first.classes] == [
        content_key(p.instance) for p in second.classes
    ]


@pytest.mark.parametrize("make", default_only([chain, residual, transformer], [transformer]))
def test_equal_layers_have_few_classes(make: Callable[[int], Program]) -> None:
    """O(log n) classes for n layers; what is twice as long has a few more, not twice as many."""
    limits = Limits(children=8, leaf=20 if make is transformer else 3)
    few, many = (
        len(tree_of(Instance.of(make(n), "activation"), limits).classes) for n in (60, 240)
    )
    assert many <= few + 10


def test_a_chain_is_cut_where_a_single_value_crosses() -> None:
    """Blocks of three, of which the next reads the sum only. The first block reads what the caller
    holds, so all of it can be cut. With fewer children than pieces there are several in each."""
    forward = forward_of(residual(6))
    for most, sizes in ((16, [1, 1, 1, 3, 3, 3, 3, 3]), (4, [2, 4, 6, 6])):
        groups = children_of(forward, Limits(most, leaf=2, kind="chain"))
        assert [len(group) for group in groups] == sizes
        assert all(forward.crossing_P[group[-1]] == 1 for group in groups[:-1])


def test_levels_may_be_bounded() -> None:
    instance = Instance.of(chain(60), "activation")
    assert tree_of(instance, Limits(4, 2), levels=2).root.depth == 2
    assert tree_of(instance, Limits(4, 2), levels=1).root.is_leaf


def cut(program: Program, sizes: Sequence[int]) -> Level:
    instance = Instance.of(program, "activation")
    forward = list(forward_of(program).cnode_P)
    groups: list[list[int]] = []
    for size in sizes:
        groups.append(forward[:size])
        forward = forward[size:]
    return level_of(instance, [group for group in [*groups, forward] if group])


def priced(level: Level, options: int) -> list[ChildPrices]:
    orders: list[list[Order]] = []
    for j in range(len(level) - 1):
        part = level.part(j)
        some = [part.capture, *quick_orders(part)]
        offers = offers_of(part, some, options)
        orders.append([flattened(level, j, o.order) for o in offers] if level.backward_N[j] else [])
    return prices_of(level, orders)


SMALL: dict[str, tuple[Callable[[], Program], tuple[int, ...], int]] = {
    "chain": (lambda: chain(6), (2, 2), 1),
    "uneven chain": (lambda: chain(6, seed=2), (2, 2), 1),
    "residual": (lambda: residual(2), (3,), 2),
    "unet": (lambda: unet(2), (2, 2), 1),
    "encoder-decoder": (lambda: encoder_decoder(2), (2, 2), 1),
    "stochastic": (lambda: stochastic(2), (3,), 2),
    "random": (lambda: mixed_dag(4, 6), (3, 2), 1),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_program_finds_what_trying_everything_finds(name: str, solver: MilpSolver) -> None:
    """Every mode of every execution, flat, freed after last use: no plan of the family that holds
    the budget with what the program counts is faster, and what it counts is never too little."""
    make, sizes, options = SMALL[name]
    level = cut(make(), sizes)
    prices = priced(level, options)
    inst = level.instance
    high = inst.peak(inst.capture)
    proven = 0
    for share in (1.0, 0.9, 0.75, 0.6):
        limit = int(share * high)
        for correct in (False, True):
            model = ReducedProgram(level, prices, limit, correct=correct).model()
            answer = solver.solve(model.milp, 20.0)
            fastest = min(all_times(model, limit), default=None)
            if answer.point is None:
                assert answer.status == "infeasible"
                continue
            order = model.order(answer.point)
            assert is_valid(inst, order)
            assert inst.peak(order) <= limit
            predicted = model.fixed_ns + answer.objective * model.scale_ns
            assert inst.time_ns(order) == pytest.approx(predicted, abs=1)
            assert fastest is not None
            assert fastest <= inst.time_ns(order)
            proven += fastest == inst.time_ns(order)
    assert proven >= 2  # conservative, but not blind


def all_times(model: ReducedModel, limit: int) -> Iterator[int]:
    """Times of all orders of the family that hold the limit in truth."""
    inst = model.level.instance
    first = [list(columns.values()) for columns in model.first if columns]
    again = [[*r.column.values(), -1] for rs in model.replays for r in rs]
    saves: dict[int, list[int]] = {}
    for j, columns in enumerate(model.first):
        for mode, column in columns.items():
            if mode >= 0:
                saves.setdefault(j, []).append(column)
    for rs in model.replays:
        for r in rs:
            if r.child in saves:
                saves[r.child] += [c for m, c in r.column.items() if m >= 0]
    for chosen in product(*first, *again):
        point: Any = dict.fromkeys(range(model.milp.columns), 0.0)
        point.update((c, 1.0) for c in chosen if c >= 0)
        if any(sum(point[c] for c in columns) != 1 for columns in saves.values()):
            continue
        order = model.order(point)
        if is_valid(inst, order) and inst.peak(order) <= limit:
            yield inst.time_ns(order)


def same_as_the_thesis(
    level: Level, options: int, share: float, solver: MilpSolver, *, whole_too: bool = False
) -> bool:
    """Whether there is a plan. Print lets forwards run again before the loss and more of them
    before a backward, so it may be faster; among the same runs it is not, though it might make
    what a child saves more than once (the lemma of `reduced.py`)."""
    inst = level.instance
    prices = priced(level, options)
    limit = int(share * inst.peak(inst.capture))
    planned = False
    for saved in (None, limit // 2):
        reduced = ReducedProgram(level, prices, limit, saved).model()
        runs = {(r.target, r.child, o) for rs in reduced.replays for r in rs for o in r.column}
        ours = solver.solve(reduced.milp, 60.0)
        theirs, free = (ThesisProgram(level, prices, limit, saved, some) for some in (runs, None))
        restricted, whole = (solver.solve(program.milp, 60.0) for program in (theirs, free))
        if ours.point is None or not reduced.fits:
            assert restricted.status == "infeasible"
            continue
        our_ns = reduced.fixed_ns + ours.objective * reduced.scale_ns
        assert ours.status == restricted.status == whole.status == "optimal"
        assert theirs.fixed_ns + restricted.objective == pytest.approx(our_ns, abs=0.5)
        assert free.fixed_ns + whole.objective <= our_ns + 0.5
        if whole_too:
            assert free.fixed_ns + whole.objective == pytest.approx(our_ns, abs=0.5)
        planned = True
    return planned


@pytest.mark.parametrize("name", SMALL)
def test_the_program_of_the_thesis_finds_the_same(name: str, solver: MilpSolver) -> None:
    make, sizes, options = SMALL[name]
    level = cut(make(), sizes)
    planned = [
        same_as_the_thesis(level, options + 1, share, solver, whole_too=True)
        for share in (1.0, 0.85, 0.8, 0.7)
    ]
    assert any(planned)


@settings(max_examples=12, derandomize=True)
@given(
    st.sampled_from([mixed_dag, mixed_chain]),
    st.integers(0, 10_000),
    st.integers(6, 14),
    st.integers(1, 4),
    st.sampled_from([0.96, 0.9, 0.84, 0.78]),
)
def test_the_program_of_the_thesis_finds_the_same_in_any_step(
    solver: MilpSolver, make: Any, seed: int, nodes: int, children: int, share: float
) -> None:
    program = make(seed, nodes)
    size = max(1, len(forward_of(program)) // children)
    same_as_the_thesis(cut(program, (size,) * (children - 1)), 3, share, solver)


@settings(max_examples=25, derandomize=True)
@given(
    st.integers(0, 10_000), st.integers(6, 14), st.sampled_from([0.95, 0.8, 0.65]), st.booleans()
)
def test_what_is_predicted_is_never_too_little(
    solver: MilpSolver, seed: int, nodes: int, share: float, correct: bool
) -> None:
    level = cut(mixed_dag(seed, nodes), (3, 3, 3))
    inst = level.instance
    limit = int(share * inst.peak(inst.capture))
    model = ReducedProgram(level, priced(level, 3), limit, limit, correct=correct).model()
    answer = solver.solve(model.milp, 10.0)
    if answer.point is not None and model.fits:
        order = model.order(answer.point)
        assert is_valid(inst, order)
        assert inst.peak(order) <= limit
        lean = inst.without_idle(order)
        assert is_valid(inst, lean)
        assert inst.peak(lean) <= limit


def test_corrections_find_more(solver: MilpSolver) -> None:
    """An input that dies inside a run makes room for what comes after it."""
    level = cut(mixed_dag(1, 10), (2, 2, 2, 2))
    prices = priced(level, 3)
    inst = level.instance
    for share, only_then in ((0.85, False), (0.75, True)):
        limit = int(share * inst.peak(inst.capture))
        plain, corrected = (
            solver.solve(ReducedProgram(level, prices, limit, correct=on).model().milp, 30.0)
            for on in (False, True)
        )
        assert corrected.point is not None
        assert (plain.point is None) == only_then
        assert corrected.objective < plain.objective - 1e-6


def test_less_saved_takes_longer(solver: MilpSolver) -> None:
    """The save row."""
    level = cut(residual(4), (3, 3, 3))
    inst = level.instance
    prices = priced(level, 4)
    high = inst.peak(inst.capture)
    times = []
    for share in (1.0, 0.5, 0.3):
        model = ReducedProgram(level, prices, high, int(share * high)).model()
        answer = solver.solve(model.milp, 10.0)
        assert answer.point is not None
        times.append(inst.time_ns(model.order(answer.point)))
    assert times[0] < times[1] < times[2]


def test_work_is_bounded_besides_the_clock(solver: MilpSolver) -> None:
    """The same answer twice, well before the time limit."""
    level = cut(transformer(2), tuple([3] * 10))
    inst = level.instance
    model = ReducedProgram(
        level, priced(level, 5), int(0.5 * inst.peak(inst.capture)), correct=True
    ).model()
    free = solver.solve(model.milp, 60.0)
    one, two = (solver.solve(model.milp, 60.0, most_checks=2) for _ in range(2))
    assert one.objective == two.objective
    assert one.bound == two.bound
    assert one.seconds < free.seconds + 1
    assert (one.bound, one.status) != (free.bound, free.status)
