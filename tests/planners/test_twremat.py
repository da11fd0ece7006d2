"""Recursion over balanced separators: the decomposition, the orders, and what the planner says."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable
from itertools import product
from math import log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.graphs import (
    Builder,
    chain,
    encoder_decoder,
    random_dag,
    residual,
    stochastic,
    transformer,
    unet,
)
from helpers.planners.matrix import check
from helpers.slow import default_only
from remat_compile.ir.analysis import treewidth
from remat_compile.ir.analysis.treewidth import (
    Separated,
    TreeDecomposition,
    separator_tree,
    tree_decomposition,
)
from remat_compile.ir.graph import ANodeKind
from remat_compile.ir.program import Budget, BufferBinding, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Feasible, Infeasible, Optimal, TimedOut, parse_planner
from remat_compile.planners.eviction.separator_order import (
    OrderTooLong,
    Prerequisites,
    SeparatorOrder,
)
from remat_compile.planners.eviction.twremat import Twremat
from remat_compile.planners.instance import Instance
from remat_compile.plans.budget import Baseline

Graph = list[set[int]]
ELIMINATIONS = ("fill", "degree")


def graph_of(size: int, edges: set[tuple[int, int]]) -> Graph:
    graph: Graph = [set() for _ in range(size)]
    for u, v in edges:
        graph[u].add(v)
        graph[v].add(u)
    return graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Of up to 20 vertices, from none connected to all."""
    size = draw(st.integers(0, 20))
    pairs = [(u, v) for u, v in product(range(size), repeat=2) if u < v]
    return graph_of(size, draw(st.sets(st.sampled_from(pairs))) if pairs else set())


def is_decomposition(graph: Graph, tree: TreeDecomposition) -> None:
    """By definition: a tree; every vertex and edge in a bag; the bags of a vertex connected."""
    links = {(a, b) for a, beside in enumerate(tree.links_B) for b in beside}
    assert links == {(b, a) for a, b in links}
    assert reached(0, set(range(len(tree.bags))), links) == set(range(len(tree.bags)))
    assert not any(tree.bags[a] <= tree.bags[b] for a, b in links)
    assert not tree.bags or len(links) == 2 * (len(tree.bags) - 1)
    for v, near in enumerate(graph):
        mine = {b for b, bag in enumerate(tree.bags) if v in bag}
        assert mine
        assert reached(min(mine), mine, links) == mine
        assert all(any({u, v} <= bag for bag in tree.bags) for u in near)


def reached(start: int, among: set[int], links: set[tuple[int, int]]) -> set[int]:
    seen = {start} & among
    walk = list(seen)
    for a in walk:
        fresh = {b for b in among - seen if (a, b) in links}
        seen |= fresh
        walk += fresh
    return seen


def is_separated(graph: Graph, vertices: set[int], tree: Separated) -> int:
    """The depth of the tree, in which no part has more than half of the vertices that it parts,
    and no edge leads from one part to another."""
    parts = [{v for v, k in tree.part_of.items() if k == p} for p in range(len(tree.parts))]
    assert sorted([*tree.separator, *(v for part in parts for v in part)]) == sorted(vertices)
    for part in parts:
        assert 0 < 2 * len(part) <= len(vertices)
        assert all(u in part or u not in tree.part_of for v in part for u in graph[v])
    below = [is_separated(graph, p, t) for p, t in zip(parts, tree.parts, strict=True)]
    return 1 + max(below, default=0)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(graphs(), st.sampled_from(ELIMINATIONS), st.integers(0, 5))
def test_decompositions_are_such_and_separators_balanced(
    graph: Graph, elimination: str, seed: int
) -> None:
    decomposition = tree_decomposition(graph, elimination)  # type: ignore[arg-type]
    is_decomposition(graph, decomposition)
    weights = [Random(seed).randint(0, 9) for _ in graph]
    tree = separator_tree(decomposition, weights)
    assert tree.size == len(graph)
    depth = is_separated(graph, set(range(len(graph))), tree)
    assert depth <= log2(max(1, len(graph))) + 1


def tree_of(needs: Prerequisites) -> Separated:
    return separator_tree(tree_decomposition(needs.neighbours()), needs.bytes_C)


def test_the_worked_example_of_a_path() -> None:
    assert doctest.testmod(treewidth) == (0, 4)


def nodes(held_C: list[tuple[int, ...]]) -> Prerequisites:
    """A graph of nodes of one byte that may all be computed again at any time, as the paper's."""
    return Prerequisites(held_C, [()] * len(held_C), [1] * len(held_C), [0] * len(held_C))


def most_alive(needs: Prerequisites, order: list[int]) -> int:
    """Nodes alive at one time, by definition: each is computed with all that it reads alive, and
    goes after its last reader before it is computed again."""
    now: dict[int, int] = {}
    lives: list[list[int]] = []
    for i, c in enumerate(order):
        for before in needs.held_C[c]:
            assert before in now, f"{c} reads {before}, which was never computed"
            lives[now[before]][1] = i
        now[c] = len(lives)
        lives.append([i, i])
    return max(sum(born <= i <= last for born, last in lives) for i in range(len(order)))


def levels(tree: Separated) -> int:
    return 1 + max(map(levels, tree.parts), default=0)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 3))
def test_no_more_is_alive_than_separators_and_what_one_node_reads(
    seed: int, size: int, most: int
) -> None:
    """Of each level its separator, and what one of its nodes reads in the parts."""
    rng = Random(seed)
    reads = [tuple(sorted(rng.sample(range(c), min(c, rng.randint(0, most))))) for c in range(size)]
    needs = nodes(reads)
    decomposition = tree_decomposition(needs.neighbours())
    tree = separator_tree(decomposition, needs.bytes_C)
    order = SeparatorOrder(needs, -1, 100_000).run(tree)
    assert set(order) == set(range(size))
    assert most_alive(needs, order) <= levels(tree) * (decomposition.width + 1 + most)
    assert SeparatorOrder(needs, size, 100_000).run(tree) == list(range(size))


def ladder(length: int) -> Prerequisites:
    """A chain and its backward: node `length + k` reads the one before it and its layer."""
    layers: list[tuple[int, ...]] = [(c - 1,) if c else () for c in range(length)]
    back = [(length + k - 1, length - 1 - k) for k in range(length)]
    return nodes([*layers, *back])


def test_on_chains_memory_grows_with_the_logarithm() -> None:
    """Doubling a chain of 2 n nodes adds a separator's worth of nodes and doubles the order and a
    little more; with everything kept it would double the memory."""
    alive, runs = {}, {}
    for k in range(3, 10):
        needs = ladder(2**k)
        order = SeparatorOrder(needs, -1, 10**6).run(tree_of(needs))
        alive[k], runs[k] = most_alive(needs, order), len(order) / len(needs.held_C)
    assert all(alive[k + 1] - alive[k] <= 3 for k in range(3, 9)), alive
    assert alive[9] <= 3 * 9
    assert all(runs[k] <= k for k in runs), runs


def ended_sums(blocks: int = 5) -> Program:
    """A sum of gradients in place; each of its terms is read before it is ended."""
    b = Builder("sums")
    b.input("x0", 10)
    for i in range(blocks):
        b.param(f"w{i}", 4, f"dw{i}")
        b.op([f"x{i}", f"w{i}"], [(f"x{i + 1}", "output" if i == blocks - 1 else "act", 30)])
    b.param("w", 4, "dw")
    b.loss([f"x{blocks}"], [("t", 30)])
    b.op(["t"], [("s0", "grad", 20)], phase="bwd")
    for i in range(blocks):
        b.op(["t", f"x{i + 1}"], [(f"c{i}", "grad", 20)], phase="bwd")
        b.accumulate(f"s{i}", f"c{i}", f"s{i + 1}", "grad", 20)
        reads = [f"s{i + 1}", f"x{i}"]
        b.op(reads, [(f"h{i}", "grad", 50)], phase="bwd")
    for i in reversed(range(blocks)):
        b.op([f"h{i}", f"x{i}"], [(f"dw{i}", "param_grad", 4)], phase="bwd")
    b.op([f"s{blocks}"], [("dw", "param_grad", 4)], phase="bwd")
    return b.program()


def updated_buffers(blocks: int = 4) -> Program:
    """Beside the way to the loss, and for the backward alone: readers of a buffer that the loss
    updates, of which one can run again without it."""
    b = Builder("updated")
    b.input("x0", 10)
    pending = []
    for i in range(blocks):
        b.param(f"w{i}", 4, f"dw{i}")
        b.storage(f"rm{i}", "buffer", 8)
        b.buffers.append(BufferBinding((f"rm{i}",), f"rm{i}", f"nrm{i}"))
        reads = [f"x{i}", f"w{i}", f"rm{i}"]
        writes: list[tuple[str, ANodeKind, int]] = [(f"n{i}", "act", 30), (f"nrm{i}", "pending", 8)]
        b.op(reads, writes, replay=[f"n{i}"])
        b.op([f"x{i}", f"rm{i}"], [(f"a{i}", "act", 20)])
        b.op([f"x{i}", f"rm{i}"], [(f"c{i}", "act", 20)], replay=[f"c{i}"])
        b.op([f"n{i}"], [(f"x{i + 1}", "output" if i == blocks - 1 else "act", 30)])
        pending.append(f"nrm{i}")
    b.loss([f"x{blocks}", *pending], [(f"d{blocks}", 30)])
    for i in reversed(range(blocks)):
        reads = [f"d{i + 1}", f"n{i}", f"x{i}", f"a{i}", f"c{i}"]
        grads: list[tuple[str, ANodeKind, int]] = [(f"dw{i}", "param_grad", 4)]
        b.op(reads, [*grads, (f"d{i}", "grad", 30)] if i else grads, phase="bwd")
    return b.program()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "chain": lambda: chain(17, seed=1),
    "residual": residual,
    "unet": lambda: unet(6),
    "encoder-decoder": lambda: encoder_decoder(5),
    "stochastic": lambda: stochastic(5),
    "transformer": lambda: transformer(1),
    "ended sums": ended_sums,
    "updated buffers": updated_buffers,
    **{f"random {seed}": lambda seed=seed: random_dag(seed, 16) for seed in range(8)},  # type: ignore[misc]
}


@pytest.mark.parametrize("graph", PROGRAMS)
@pytest.mark.parametrize("backward", [True, False])
def test_every_order_is_a_valid_plan(graph: str, backward: bool) -> None:
    """At every end of the recursion: the simulator refuses what reads something that is not
    there, draws random numbers out of order, or ends a sum that is still to be read."""
    program = PROGRAMS[graph]()
    instance = Instance.of(program, "activation")
    needs = Prerequisites.of(instance, backward=backward)
    whole = instance.peak(instance.capture)
    for elimination in ELIMINATIONS:
        decomposition = tree_decomposition(needs.neighbours(), elimination)  # type: ignore[arg-type]
        tree = separator_tree(decomposition, needs.bytes_C)
        for plain in (-1, 0.05 * whole, 0.2 * whole, 0.6 * whole):
            order = SeparatorOrder(needs, plain, 10_000).run(tree)
            simulate(program, instance.schedule(order, "x"))
            runs = Counter(order)
            assert set(runs) == set(instance.capture)
            once = (c for c in runs if not backward and instance.phase_C[c] == "bwd")
            assert all(runs[c] == 1 for c in once)


@pytest.mark.parametrize("plain", [40, 60, 90])
def test_the_recursion_ends_where_a_plain_order_fits(plain: int) -> None:
    """So it takes no more than that, and less time for more."""
    needs = ladder(64)
    tree = tree_of(needs)
    to_leaves, ended = (SeparatorOrder(needs, p, 10_000).run(tree) for p in (-1, plain))
    assert most_alive(needs, to_leaves) < 40
    assert most_alive(needs, ended) <= plain
    assert len(ended) < len(to_leaves)


def test_an_order_that_becomes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ladder(16)
    longest = len(SeparatorOrder(needs, -1, 1000).run(tree_of(needs)))
    SeparatorOrder(needs, -1, longest).run(tree_of(needs))
    with pytest.raises(OrderTooLong):
        SeparatorOrder(needs, -1, longest - 1).run(tree_of(needs))
    monkeypatch.setattr("remat_compile.planners.eviction.twremat._LONGEST", 0)
    program = chain(8)
    refused = Twremat().plan(program, Budget(700, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget == Budget(Baseline.of(program).activation_peak_bytes, "activation")


@pytest.mark.parametrize(
    "graph",
    default_only(["chain", "unet", "encoder-decoder", "stochastic", "random 3"], ["stochastic"]),
)
def test_the_least_that_a_refusal_names_is_reached(graph: str) -> None:
    """It is the same under every budget that is refused."""
    program = PROGRAMS[graph]()
    refused = Twremat().plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    least = refused.min_budget.bytes
    assert least < Baseline.of(program).activation_peak_bytes
    assert str(least) in refused.why.message
    below = Twremat().plan(program, Budget(least - 1, "activation"))
    assert isinstance(below, Infeasible)
    assert below.min_budget == refused.min_budget
    budget = Budget(least, "activation")
    assert check(program, budget, Twremat().plan(program, budget))[0] == "feasible"


@pytest.mark.parametrize(
    "graph", default_only(["chain", "encoder-decoder", "transformer", "random 3"], ["chain"])
)
def test_more_memory_is_less_time_and_so_is_what_fits(graph: str) -> None:
    program = PROGRAMS[graph]()
    high = Baseline.of(program).activation_peak_bytes
    refused = Twremat().plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    low = refused.min_budget.bytes
    alone, kept = [], []
    for share in (0.0, 0.25, 0.5, 0.75):
        budget = Budget(int(low + share * (high - low)), "activation")
        for keep, times in ((False, alone), (True, kept)):
            result = Twremat(keep=keep).plan(program, budget)
            assert isinstance(result, Feasible | Optimal)
            assert result == Twremat(keep=keep).plan(program, budget)
            times.append(result.time_ns)
    assert all(with_pass <= without for with_pass, without in zip(kept, alone, strict=True))
    assert sum(kept) < sum(alone)
    assert alone == sorted(alone, reverse=True)


def test_no_time_is_a_value() -> None:
    """With a graph whose decomposition alone would take minutes."""
    for program in (chain(8), random_dag(8, 300)):
        late = Twremat().plan(program, Budget(700, "activation"), time_limit_s=0.0)
        assert late == TimedOut(None, 0, Instance.of(program, "activation").base_time_ns)


def test_options_and_progress() -> None:
    planner = parse_planner("twremat{scope=all, elimination=degree, keep=false}")
    assert planner == Twremat(scope="all", elimination="degree", keep=False)
    lines: list[str] = []
    program = chain(9)
    Twremat().plan(program, Budget(800, "activation"), progress=lines.append)
    assert lines
    assert all(line.startswith("twremat: ") for line in lines)
