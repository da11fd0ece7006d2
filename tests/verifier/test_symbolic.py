"""Bytes over the ranges of the symbols: z3 against plain enumeration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.verifier.step_text import GRAPH, PLAN, schedule
from remat_compile.ir.expr import (
    Add,
    CeilDiv,
    Const,
    Expr,
    FloorDiv,
    Max,
    Mul,
    RoundUp,
    Sym,
    evaluate,
)
from remat_compile.ir.program import Budget, Program, Symbol
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.verifier import Largest, ProvenPlan, Refuted, Undecided, prove_largest, verify
from remat_compile.verifier.arithmetic import profile as profile_module
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.memory import ByteLimits
from remat_compile.verifier.obligations.memory_ranges import Everywhere, prove_ranges
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.sizes import Amounts, read_amounts
from remat_compile.verifier.read.statements import Statements, read_statements

RANGES = {"b": (1, 9), "c": (2, 6)}

NOTHING = (Const(0),)
"""A shape that storage of any size has room for."""

SIZED = ("h", "n", "d", "e", "de")
"""aNodes of the example whose sizes are drawn."""


def _sized(sizes: Mapping[str, Expr], unit: int = 16) -> tuple[Program, Schedule]:
    """The example with these sizes, kept >= 0, in symbols of `RANGES`."""
    made, plan = schedule(PLAN, GRAPH)
    anodes = tuple(
        replace(a, size=Max((Const(0), sizes[a.name])), shape=NOTHING) if a.name in sizes else a
        for a in made.graph.anodes
    )
    symbols = tuple(Symbol(n, low, high, low, 0, 0) for n, (low, high) in RANGES.items())
    target = replace(made.target, granularity_bytes=unit)
    graph = replace(made.graph, anodes=anodes)
    return replace(made, graph=graph, symbols=symbols, target=target), plan


def _points() -> list[dict[str, int]]:
    spans = [range(low, high + 1) for low, high in RANGES.values()]
    return [dict(zip(RANGES, values, strict=True)) for values in product(*spans)]


def _peaks(made: Program, plan: Schedule) -> list[tuple[int, int, dict[str, int]]]:
    traces = [(simulate(made, plan, env), env) for env in _points()]
    return [(t.peak_bytes, t.activation_peak_bytes, env) for t, env in traces]


def _exprs() -> st.SearchStrategy[Expr]:
    leaf = st.one_of(st.integers(-40, 200).map(Const), st.sampled_from(sorted(RANGES)).map(Sym))

    def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        pair = st.tuples(inner, inner)
        by = st.integers(1, 9)
        return st.one_of(
            pair.map(Add),
            pair.map(Max),
            st.tuples(st.integers(-40, 60).map(Const), inner).map(Mul),
            pair.map(Mul),
            st.builds(FloorDiv, inner, by),
            st.builds(CeilDiv, inner, by),
            st.builds(RoundUp, inner, by),
        )

    return st.recursive(leaf, larger, max_leaves=5)


@settings(max_examples=20)
@given(st.fixed_dictionaries(dict.fromkeys(SIZED, _exprs())), st.sampled_from((1, 16, 64)))
def test_the_bound_over_ranges_is_the_greatest_of_all_values(
    sizes: dict[str, Expr], unit: int
) -> None:
    made, plan = _sized(sizes, unit)
    peaks = _peaks(made, plan)
    answer = verify(made, plan, time_limit_s=20)
    assert isinstance(answer, ProvenPlan), answer
    device, activation = max(p[0] for p in peaks), max(p[1] for p in peaks)
    if answer.proven.obligations[1] == "memory at sample":  # products that z3 left undecided
        assert answer.bounds[0].device_bytes == peaks[0][0]
        return
    assert (answer.proven.device_bytes, answer.proven.activation_bytes) == (device, activation)
    short = verify(made, plan, (Budget(device - 1),), scope="range", time_limit_s=20)
    assert isinstance(short, Refuted), short
    assert {d.code for d in short.diagnostics} == {"FB0820"}


MIXED: dict[str, Expr] = {
    "d": Mul((Const(37), Sym("b"))),
    "e": Add((Const(400), Mul((Const(-37), Sym("b"))))),
    "h": Max((Const(0), Add((Sym("c"), Mul((Const(-1), Sym("b"))))))),
}


@pytest.mark.parametrize("boxes", [1, 3, 4000])
def test_boxes_and_rows_prove_the_same(boxes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few boxes z3 gets the rows themselves, the symbols ranging in each box."""
    monkeypatch.setattr(profile_module, "MOST_BOXES", boxes)
    made, plan = _sized(MIXED, 64)
    peaks = _peaks(made, plan)
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.device_bytes == max(p[0] for p in peaks)
    assert answer.proven.activation_bytes == max(p[1] for p in peaks)
    assert answer.proven.obligations[1] == "memory for b in [1, 9], c in [2, 6]"


def test_z3_agrees_with_the_corner_lemma() -> None:
    sizes: dict[str, Expr] = {
        "d": Mul((Const(37), Sym("b"), Sym("c"))),
        "e": Add((Const(400), Mul((Const(-37), Sym("b"))))),
        "h": CeilDiv(Sym("c"), 3),
    }
    made, plan = _sized({**sizes, "e": RoundUp(Sym("b"), 7)}, 64)
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    events, amounts = unfold(statements, plan), read_amounts(made, statements)
    assert isinstance(events, list)
    assert isinstance(amounts, Amounts)
    both = [
        prove_ranges(
            statements, events, amounts, RANGES, ByteLimits(None, None), Inquiry(30), use_corner=use
        )
        for use in (True, False)
    ]
    assert all(isinstance(outcome, Everywhere) for outcome in both)
    assert both[0] == both[1]


def test_a_budget_is_refuted_with_a_value_that_breaks_it() -> None:
    made, plan = _sized(MIXED, 64)
    peaks = _peaks(made, plan)
    least = min(p[0] for p in peaks)
    answer = verify(made, plan, (Budget(least),), scope="range")
    assert isinstance(answer, Refuted)
    message = answer.diagnostics[0].message
    env = {
        n: int(message.split(f"{n} = ")[1].split(",")[0].split(":")[0].split(" ")[0])
        for n in RANGES
    }
    (broken,) = [p[0] for p in peaks if p[2] == env]
    assert broken > least


def test_a_size_that_is_negative_inside_the_ranges_is_refused_with_its_place() -> None:
    """It is not at either corner, which is all that reading the file looks at."""
    made, plan = schedule()
    size = Add((Const(3), Mul((Const(100), Sym("c"))), Mul((Const(-60), Sym("b")))))
    anodes = tuple(
        replace(a, size=size, shape=NOTHING) if a.name == "h" else a for a in made.graph.anodes
    )
    symbols = (Symbol("b", 1, 9, 1, 0, 0), Symbol("c", 1, 9, 1, 0, 0))
    made = replace(made, graph=replace(made.graph, anodes=anodes), symbols=symbols)
    answer = verify(made, plan)
    assert isinstance(answer, Refuted)
    (diagnostic,) = answer.diagnostics
    assert diagnostic.code == "FB0822"
    assert "the size of %h is" in diagnostic.message
    assert diagnostic.span is not None
    assert diagnostic.span.line == made.graph.anode["h"].span.line  # type: ignore[union-attr]
    env = {n: int(diagnostic.message.split(f"{n} = ")[1].split(",")[0]) for n in ("b", "c")}
    assert evaluate(size, env) < 0


@settings(max_examples=25)
@given(
    st.fixed_dictionaries(dict.fromkeys(SIZED, _exprs())),
    st.integers(0, 100),
    st.sampled_from(sorted(RANGES)),
)
def test_the_largest_value_is_that_of_enumeration(
    sizes: dict[str, Expr], share: int, symbol: str
) -> None:
    made, plan = _sized(sizes, 16)
    peaks = _peaks(made, plan)
    low, high = min(p[0] for p in peaks), max(p[0] for p in peaks)
    budget = low + (high - low) * share // 100
    holds = {
        value: all(peak <= budget for peak, _, env in peaks if env[symbol] == value)
        for value in range(RANGES[symbol][0], RANGES[symbol][1] + 1)
    }
    answer = prove_largest(made, plan, (Budget(budget),), symbol, time_limit_s=20)
    if isinstance(answer, Undecided):
        assert "z3" in answer.why
        return
    if not any(holds.values()):
        assert isinstance(answer, Refuted)
        return
    assert isinstance(answer, Largest), answer
    best = max(value for value, held in holds.items() if held)
    assert answer.value == best
    assert (not answer.gap) == all(holds[v] for v in holds if v < best)
    assert bool(answer.blocked) == (best < RANGES[symbol][1])
    if answer.blocked:
        assert f"{symbol} = {best + 1}" in answer.blocked[0].message


def test_an_unknown_symbol_has_no_largest_value() -> None:
    made, plan = _sized(MIXED)
    answer = prove_largest(made, plan, (), "bb")
    assert isinstance(answer, Refuted)
    assert answer.diagnostics[0].code == "FB0823"


def test_a_tiny_limit_decides_nothing() -> None:
    made, plan = _sized(MIXED)
    assert isinstance(verify(made, plan, time_limit_s=1e-9, scope="range"), Undecided)
    assert isinstance(prove_largest(made, plan, (), "b", time_limit_s=1e-9), Undecided)
