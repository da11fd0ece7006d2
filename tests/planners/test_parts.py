"""A part of a step is a step: an option of an option is a valid order of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.copying_truth import least_time_ns
from helpers.planners.exhaustive_offload import best_of_all_sets
from helpers.planners.graphs import chain, residual, stochastic
from helpers.planners.mixed_steps import mixed_chain, mixed_dag
from helpers.planners.partitions import Partition, Released, three, two
from remat_compile.ir.analysis.blocks import fingerprint
from remat_compile.ir.graph import Call, CNode, Graph, Ref
from remat_compile.ir.program import Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.bounds.links import joint_ns
from remat_compile.planners.bounds.moving import moving_ns
from remat_compile.planners.chains.block_options import block_instance
from remat_compile.planners.chains.chain import chain_of_program, fingerprints
from remat_compile.planners.chains.part import content_key
from remat_compile.planners.hierarchy.leaf_program import program_of_part
from remat_compile.planners.hierarchy.partition.children import Limits
from remat_compile.planners.hierarchy.partition.forward import ForwardGraph
from remat_compile.planners.hierarchy.partition.levels import Level, PartClass, level_of, tree_of
from remat_compile.planners.hierarchy.reduced.options import made_again, quick_orders
from remat_compile.planners.hierarchy.reduced.prices import prices_of
from remat_compile.planners.hierarchy.reduced.solve_level import flattened
from remat_compile.planners.instance import Instance, Order
from remat_compile.planners.offload.tables.offload_table import Rates, best_sets
from remat_compile.planners.programs.solve_compact import is_valid
from remat_compile.planners.solvers import MilpSolver

STEPS = st.builds(
    lambda make, seed, nodes: make(seed, nodes),
    st.sampled_from([mixed_chain, mixed_dag]),
    st.integers(0, 10_000),
    st.integers(4, 24),
)


def random_order(part: PartClass, rng: Random) -> Order:
    """An order of the part made of orders of its children, and of theirs: some of them run again
    as a whole before a backward, some save nothing."""
    if part.level is None:
        inst = part.instance
        able = [c for c, ok in enumerate(inst.makable_C) if ok]
        return made_again(inst, [c for c in able if rng.random() < 0.6])
    level = part.level
    options = [
        [flattened(level, j, random_order(child, rng))] if level.backward_N[j] else []
        for j, child in enumerate(part.children)
    ]
    prices = prices_of(level, options)
    order: Order = []
    saved = [bool(ways.options) and rng.random() < 0.5 for ways in prices[:-1]]
    for ways, at_once in zip(prices, saved, strict=False):
        order += ways.options[0].first.run if at_once else ways.skim_first.run
    order += [level.instance.loss, *level.backward_N[-1]]
    for t in reversed(range(len(level) - 1)):
        ways = prices[t]
        if not ways.options:
            continue
        if not saved[t]:
            order += ways.options[0].last.run
        if rng.random() < 0.5:  # of no use, and yet valid
            order += [c for k in sorted(level.before_N[t]) for c in prices[k].skim_again.run]
        order += ways.options[0].back.run
    return order


@settings(max_examples=120, derandomize=True)
@given(STEPS, st.integers(0, 1000), st.sampled_from(["auto", "dominators", "intervals"]))
def test_an_option_of_an_option_is_a_valid_order(program: Program, seed: int, kind: str) -> None:
    rng = Random(seed)
    instance = Instance.of(program, rng.choice(["activation", "device"]))
    limits = Limits(children=rng.randint(2, 5), leaf=rng.randint(1, 4), kind=kind)  # type: ignore[arg-type]
    order = random_order(tree_of(instance, limits).root, rng)
    assert is_valid(instance, order)
    for some in (order, instance.without_idle(order)):
        trace = simulate(program, instance.schedule(some, "x"))
        assert trace.time_ns == instance.time_ns(some)
        peak = trace.peak_bytes if instance.kind == "device" else trace.activation_peak_bytes
        assert peak == instance.peak(some)


@settings(max_examples=60, derandomize=True)
@given(STEPS)
def test_children_saved_whole_run_the_capture(program: Program) -> None:
    """Forward child by child, loss, backward child by child: valid, nothing twice."""
    instance = Instance.of(program, "activation")
    for part in tree_of(instance, Limits(children=4, leaf=3)).classes:
        level = part.level
        if level is not None:
            order = [c for cs in level.forward_N for c in cs]
            order += [c for cs in reversed(level.backward_N) for c in cs]
            assert sorted(order) == part.instance.capture
            assert is_valid(part.instance, order)


def first_level(program: Program, children: int = 4) -> Level:
    instance = Instance.of(program, "activation")
    forward = ForwardGraph.of(instance)
    cut = -(-len(forward) // children)
    groups = [list(forward.cnode_P[i : i + cut]) for i in range(0, len(forward), cut)]
    return level_of(instance, groups)


def test_what_a_part_must_run_it_knows_itself() -> None:
    """The writers of kept and pending values, whose values the part does not hold."""
    level = first_level(stochastic(4), 2)
    part, inst = level.part(0), level.instance
    held = level.permanent
    own = {inst.names_C[c] for c in level.forward_N[0] if held & set(inst.writes_C[c])}
    assert own
    assert own == {part.names_C[c] for c, must in enumerate(part.must_C) if must}
    inner = level_of(part, [[c] for c in range(part.loss)])
    musts = {part.names_C[c] for c in inner.musts}
    assert own <= musts


def test_replay_forms_and_globals_travel() -> None:
    part = first_level(stochastic(4), 2).part(0)
    again = {part.names_C[c] for c, other in enumerate(part.replay_C) if other}
    cnodes = stochastic(4).graph.cnodes
    assert again
    assert again == {c.name for c in cnodes if c.replay} & set(part.names_C)
    chained = chain_of_program(Instance.of(stochastic(4), "activation"))
    blocks = [block_instance(chained, i) for i in range(len(chained) - 1)]
    assert any(any(block.replay_C) for block in blocks)
    assert any(any(block.must_C) for block in blocks)
    masked = Instance.of(mixed_dag(3), "activation")
    assert [masked.names_A[a] for a, aside in enumerate(masked.aside_A) if aside] == ["mask"]


def test_equal_layers_are_one_class_and_other_readers_another() -> None:
    level = first_level(chain(12), 4)
    keys = [content_key(level.part(j)) for j in range(4)]
    assert keys[1] == keys[2]
    # The last one makes what the graph keeps; the first has no gradient to pass on.
    assert len(set(keys)) == 3
    # Equal bodies: of the third a later child reads what is inside of the others.
    level = first_level(with_skip(chain(12)), 4)
    keys = [content_key(level.part(j)) for j in range(4)]
    assert keys[1] != keys[2]


def with_skip(program: Program) -> Program:
    """A reader of x8 (inside of the third of four children) in the last child."""
    graph = program.graph
    last = next(c for c in graph.cnodes if c.results == ("x11",))
    wired = replace(last, call=Call(last.call.op, (*last.call.args, Ref("x8"))))
    cnodes = tuple(wired if c is last else c for c in graph.cnodes)
    return replace(program, graph=replace(graph, cnodes=cnodes))


def test_a_cnode_and_an_anode_of_one_name_are_two() -> None:
    """Blocks F1, F2 and F1, F3: the second writes a `%F1` that is not the cNode's."""

    def graph(second: Sequence[str]) -> Graph:
        anodes = tuple(
            replace(chain(1).graph.anodes[0], name=name, kind="act") for name in ("F1", "b")
        )
        one = CNode("F1", "fwd", ("F1",), Call("toy.op.default"))
        two = CNode("F2", "fwd", ("b",), Call("toy.op.default", tuple(map(Ref, second))))
        return Graph("g", anodes, (), (one, two))

    apart = replace(graph(["F1"]).cnodes[0], name="F9")
    other = replace(graph(["F1"]), cnodes=(apart, graph(["F1"]).cnodes[1]))
    assert fingerprint(graph(["F1"]), ["F1", "F2"]) == fingerprint(other, ["F9", "F2"])


def test_blocks_of_one_shape_and_other_use_are_not_solved_as_one() -> None:
    """The last layer writes an output: with `uses` that counts, though its inside is alike."""
    made = chain_of_program(Instance.of(residual(5), "activation"))
    graph, names = made.instance.program.graph, made.instance.names_C
    block = [names[c] for c in made.forward_N[4]]
    uses = {made.instance.names_A[a]: "crosses" for a in made.cross_N[4]}
    assert uses
    assert fingerprint(graph, block) != fingerprint(graph, block, uses=uses)
    kinds = fingerprints(made)
    assert kinds[3] == kinds[4]
    assert kinds[-1] != kinds[4]


@settings(max_examples=40, derandomize=True)
@given(STEPS)
def test_a_part_is_a_program_for_any_planner(program: Program) -> None:
    """Its program reads back, and counts no byte less than the part."""
    from remat_compile.ir.text.parser import parse_program
    from remat_compile.ir.text.printer import format_program

    instance = Instance.of(program, "activation")
    for part in tree_of(instance, Limits(children=4, leaf=5)).classes[:-1]:
        made = parse_program(format_program(program_of_part(part.instance)))
        again = Instance.of(made, "device")
        for order in (part.instance.capture, *quick_orders(part.instance)):
            assert is_valid(again, order)
            assert again.peak(order) >= part.instance.peak(order)
            assert again.time_ns(order) == part.instance.time_ns(order)


# -- NP-hard instances, whose least time is known --------------------------------------------------


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
