"""Every planner on every small graph under six budgets; `matrix.check` says what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.clock import HANGS_S, skips
from helpers.planners.graphs import chain, encoder_decoder, random_dag, residual, unet
from helpers.planners.matrix import (
    COPYING,
    DIFFERENT,
    HOMES,
    PLANS,
    SHARES,
    SMALL,
    USE_UP_THEIR_LIMIT,
    budget_of,
    check,
    gaps,
    outcome,
    program_for,
    program_of,
)
from helpers.planners.plugin import NAME
from helpers.planners.shortest_paths import least_time_ns
from helpers.slow import default_only
from remat_compile.ir.analysis.liveness import lower_bound_bytes
from remat_compile.ir.diagnostics import render
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import Feasible, NotApplicable, Optimal, available, parse_planner
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import ask

PLANNERS = sorted({*available(), NAME})
ANY_BUDGET = {"auto", "dtr", "hiremate", "polish"}
"""Those that must find a plan under every budget that `dtr` reaches."""
TWO = (SHARES[1], SHARES[3])
"""Budgets in every run, in turn; `make check` has all six."""
TAKE_LONG = USE_UP_THEIR_LIMIT | {"reorder", NAME}
"""They use up their limit, ask another planner again and again, or run in another process."""
CELLS = [(planner, graph) for planner in PLANNERS for graph in SMALL]
QUICK = [cell for cell in CELLS if cell[0] not in TAKE_LONG][::4]
LONG = [cell for cell in CELLS if cell[0] in TAKE_LONG and cell[1] in DIFFERENT][::3]
REACHED = [("rockmate", "stochastic"), ("pofo", "mlp"), ("twremat", "transformer")]
IN_TURN = {*QUICK, *LONG, *REACHED}
"""Three or four graphs for each planner, two where it takes long, others for the next; and branches
that no other cell comes to."""
TIME_LIMIT_S = 0.6
GOLDEN = Path(__file__).parent / "golden"

pytestmark = pytest.mark.usefixtures("drop_largest")


@pytest.mark.parametrize(
    ("planner", "graph"),
    default_only(CELLS, IN_TURN),
)
def test_plans_keep_their_word(planner: str, graph: str) -> None:
    keep_their_word(planner, graph, [TWO[0] if planner in TAKE_LONG else in_turn(planner, graph)])


@pytest.mark.slow
@pytest.mark.parametrize(("planner", "graph"), CELLS)
def test_plans_keep_their_word_under_all_budgets(planner: str, graph: str) -> None:
    keep_their_word(planner, graph, SHARES)


def in_turn(planner: str, graph: str) -> float:
    """One of the two budgets: a planner has the other on the next graph, a graph for the next."""
    return TWO[(PLANNERS.index(planner) + list(SMALL).index(graph)) % 2]


def keep_their_word(planner: str, graph: str, shares: Iterable[float]) -> None:
    for share in shares:
        cell = outcome(planner, graph, share, TIME_LIMIT_S)
        if planner in ANY_BUDGET:
            assert cell.status in PLANS
        if cell.status == "refused":
            return


def test_plans_are_near_their_bounds() -> None:
    """A bound that says nothing would not pass."""
    cells = [
        outcome(planner, graph, share, TIME_LIMIT_S)
        for planner in ("dtr", "rotor", "periodic")
        for graph in SMALL
        for share in (in_turn(planner, graph), SHARES[5])
    ]
    assert median(gaps(cells)) <= 0.10


@pytest.mark.parametrize(
    "graph", default_only(["chain", "uneven chain", "transformer"], ["uneven chain"])
)
def test_more_freedom_is_never_slower(graph: str) -> None:
    """`rotor` decides for blocks, `rk-checkmate` for single computations in the same order."""
    exact = outcome("rk-checkmate", graph, 0.42, 10.0)
    for planner in ("rotor", "rotor-floating", "revolve", "rockmate"):
        other = outcome(planner, graph, 0.42, 3.0)
        if exact.status == "optimal" and other.time is not None:
            assert exact.time is not None
            assert exact.time <= other.time + 1e-9, planner


TINY: dict[str, Callable[[], Program]] = {
    "chain": lambda: chain(4),
    "uneven chain": lambda: chain(4, seed=3),
    "another chain": lambda: chain(5, seed=8),
    "residual": lambda: residual(2),
    "unet": lambda: unet(2),
    "encoder-decoder": lambda: encoder_decoder(2),
    "random": lambda: random_dag(31, nodes=4),
}


@pytest.mark.parametrize("graph", default_only(TINY, ["chain"]))
def test_optimal_planners_equal_exhaustive_search(graph: str) -> None:
    program = TINY[graph]()
    base = Baseline.of(program)
    low = lower_bound_bytes(program, "activation")[0]
    quick = [name for name in PLANNERS if name not in USE_UP_THEIR_LIMIT | COPYING | HOMES]
    for share in (0.0, 0.25, 0.6):
        size = int(low + share * (base.activation_peak_bytes - low))
        budget = Budget(size, "activation")
        best = least_time_ns(program, budget)
        forward_only = least_time_ns(program, budget, backward=False)
        exact = parse_planner("rk-checkmate").plan(program, budget, time_limit_s=10.0)
        results = {name: parse_planner(name).plan(program, budget) for name in quick}
        for planner, result in (*results.items(), ("rk-checkmate", exact)):
            status, time_ns, bound_ns = check(program, budget, result)
            if time_ns is None:
                assert best is None or planner not in ANY_BUDGET | {"rk-checkmate"}, planner
                continue
            assert best is not None
            assert best <= time_ns, planner
            if status == "optimal":
                # What is called optimal is so among plans that run no backward again.
                assert time_ns <= (forward_only or time_ns), planner
            if bound_ns is not None and planner != NAME:
                assert bound_ns <= (forward_only or bound_ns), planner
        if forward_only is not None:
            assert isinstance(exact, Optimal)
            assert exact.time_ns == forward_only


@settings(max_examples=4, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 12), st.sampled_from(SHARES))
def test_random_graphs(seed: int, nodes: int, share: float) -> None:
    program = random_dag(seed, nodes)
    low = lower_bound_bytes(program, "activation")[0]
    high = Baseline.of(program).activation_peak_bytes
    budget = Budget(int(low + share * (high - low)), "activation")
    for planner in PLANNERS:
        if planner in USE_UP_THEIR_LIMIT and seed % 4:
            continue
        made = program_for(planner, program)
        result = parse_planner(planner).plan(made, budget, time_limit_s=0.3)
        check(made, budget, result, trusted=planner != NAME)


def test_refusals_say_why_and_who_does(golden: Callable[[Path, str], None]) -> None:
    """Planner × graph that it does not accept."""
    lines: list[str] = []
    choosy = [n for n, info in available().items() if info.load().applicability != "any graph"]
    for planner in choosy:
        for graph, program in (("one layer", chain(1)), *((g, program_of(g)) for g in SMALL)):
            budget = Budget(lower_bound_bytes(program, "activation")[0], "activation")
            made = program_for(planner, program)
            result = parse_planner(planner).plan(made, budget, time_limit_s=0.0)
            if isinstance(result, NotApplicable):
                lines += [f"== {planner} on {graph}", render(result.why), ""]
    golden(GOLDEN / "refusals.txt", "\n".join(lines))


def test_the_check_sees_a_wrong_claim() -> None:
    """The matrix would notice."""
    program = program_of("chain")
    budget = budget_of("chain", 0.5)
    good: Any = ask(
        parse_planner("dtr"),
        "dtr",
        program,
        budget,
        time_limit_s=5,
        progress=None,
        accept=lambda _: True,
    )
    check(program, budget, good)
    wrong = (
        Feasible(good.schedule, good.time_ns + 1, good.lower_bound_ns),
        Feasible(good.schedule, good.time_ns, good.time_ns + 1),
        Feasible(good.schedule, good.time_ns, None),
        Optimal(good.schedule, good.time_ns, good.time_ns - 1),
    )
    for claim in wrong:
        with pytest.raises(AssertionError):
            check(program, budget, claim)
    with pytest.raises(AssertionError):
        check(program, Budget(budget.bytes // 2, "activation"), good)


# -- Every planner ends at its time limit, on whatever machine -------------------------------------


MORE = 12
MORE_OF = {
    "auto": 40,
    "in-backward": 40,
    "autocapper": 30,  # asks another planner for each cap
    "autoswap": 80,  # once for each point of its search, without trying it
    "offload-dp": 100,  # tries those of autoswap
    "reorder": 40,  # each order is bounded once more, in 0.1 s
    "rockmate": 120,  # once for each job, without giving it to anybody
}
"""Looks past the limit, on a graph of 32 cNodes: each part of a planner sees it for itself."""


WITHIN = (1, 4, 30)
CASES = [(planner, within) for planner in sorted(available()) for within in WITHIN]


@pytest.mark.parametrize(
    ("planner", "within"), default_only(CASES, {*CASES[::2], ("rotor-floating", 30)})
)
def test_a_planner_ends_at_its_limit(
    planner: str, within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many looks are within the limit, and few are enough to end after it. One that does not
    heed what it sees goes on and on; one that does not look waits for a solver that is given
    longer than any test takes."""
    program = program_for(planner, program_of("transformer"))
    budget = budget_of("transformer", 0.26)
    chosen, clock = parse_planner(planner), skips(monkeypatch)
    clock.each_s = 10 * HANGS_S
    monkeypatch.setattr("remat_compile.planners.auto.QUICK_GRACE_S", 10**9)
    result = chosen.plan(program, budget, time_limit_s=(within - 0.5) * clock.each_s)
    looks, clock.each_s = clock.looks, 0.0
    assert looks <= within + MORE_OF.get(planner, MORE)
    if not isinstance(result, NotApplicable):
        check(program, budget, result)
