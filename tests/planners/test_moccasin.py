"""Retention intervals in CP-SAT, and the refusal without it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from helpers.planners.exact_claims import holds, reachable
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget
from remat_compile.planners import NotApplicable, Optimal, TimedOut, parse_planner
from remat_compile.planners.programs import moccasin

with_ortools = pytest.mark.skipif(find_spec("ortools") is None, reason="needs the extra cpsat")


@with_ortools
@pytest.mark.parametrize(
    ("graph", "share"),
    [
        (residual(2), 0.6),
        (stochastic(2), 0.4),
        (random_dag(7), 0.6),
        (transformer(1), 0.5),
    ],
)
def test_it_equals_rk_checkmate_where_two_runs_are_enough(graph, share: float) -> None:  # type: ignore[no-untyped-def]
    budget = reachable(graph, share)
    exact = parse_planner("rk-checkmate").plan(graph, budget)
    assert isinstance(exact, Optimal)
    assert max(holds(graph, budget, exact).executions.values()) <= 2
    result = parse_planner("moccasin").plan(graph, budget)
    holds(graph, budget, result)
    assert result.time_ns == exact.time_ns  # type: ignore[union-attr]


@with_ortools
def test_more_copies_reach_what_two_do_not() -> None:
    program = chain(7)
    budget = reachable(program, 0.1)
    exact = parse_planner("rk-checkmate").plan(program, budget)
    assert max(holds(program, budget, exact).executions.values()) > 2
    result = parse_planner("moccasin{copies=4}").plan(program, budget)
    holds(program, budget, result)
    assert result.time_ns == exact.time_ns  # type: ignore[union-attr]


@with_ortools
def test_no_time_still_answers() -> None:
    program = chain(9)
    result = parse_planner("moccasin").plan(program, reachable(program, 0.5), time_limit_s=0)
    assert isinstance(result, TimedOut)


def test_without_ortools_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moccasin, "find_spec", lambda name: None)
    program = chain(4)
    with pytest.raises(FBError) as caught:
        parse_planner("moccasin").plan(program, reachable(program, 0.5))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FB0410"
    assert "remat-compile[cpsat]" in (diagnostic.hint or "")


def test_a_graph_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moccasin, "find_spec", lambda name: object())
    program = chain(160)
    result = parse_planner("moccasin").plan(program, Budget(1000, "activation"))
    assert isinstance(result, NotApplicable)
    assert result.why.code == "FB0409"


def test_one_copy_is_no_plan() -> None:
    with pytest.raises(FBError) as caught:
        parse_planner("moccasin{copies=1}")
    assert caught.value.diagnostics[0].code == "FB0404"
