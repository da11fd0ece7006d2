"""Replay forms, declared bytes, the target's memory, huge numbers, time limits; what is assumed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from helpers.clock import HANGS_S, skips
from helpers.verifier.step_text import GRAPH, PLAN, schedule
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Add, Const, Expr, Max, Mul, RoundUp, Sym
from remat_compile.ir.graph import ANode, CNode, Replay
from remat_compile.ir.program import Header, Program, Target
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import (
    ProvenPlan,
    Refuted,
    Undecided,
    accept_certificate,
    certificate_sha256,
    verify,
)
from remat_compile.verifier.arithmetic.profile import Rows
from remat_compile.verifier.arithmetic.shapes import is_at_least
from remat_compile.verifier.assumptions import assumptions
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.values import WrongValues, prove_values
from remat_compile.verifier.read.calls import same_call
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.statements import Statements, read_statements

TWICE = """\
fbir 1
graph @g {
  %x : input f32[8] bytes 32
  %a : act f32[8] bytes 32
  %b : act f32[8] bytes 32
  %y : output f32[8] bytes 32
  %dy : tangent f32[8] bytes 32
  %g : grad f32[8] bytes 32
  F1: fwd %a, %b = ns.two(%x, 1) REPLAY
  F2: fwd %y = ns.one(%a)
  L: loss %dy = loss(%y)
  B1: bwd %g = ns.back(%dy, %b)
}
schedule @plan { F1; free %b; F2; free %a; L; F1; free %a; B1; free %b; free %dy; free %g }
"""
"""The backward reads a result of the second run of F1."""


def _twice(replay: str) -> tuple[Program, Schedule]:
    made = parse_program(TWICE.replace("REPLAY", replay))
    return made, made.schedules[0]


def _codes(made: Program, plan: Schedule) -> list[str]:
    answer = verify(made, plan)
    return [d.code for d in answer.diagnostics] if isinstance(answer, Refuted) else []


def _edit(made: Program, name: str, **fields: object) -> Program:
    def new(node: ANode | CNode) -> ANode | CNode:
        return replace(node, **fields) if node.name == name else node  # type: ignore[arg-type]

    graph = made.graph
    edited = replace(
        graph,
        anodes=tuple(map(new, graph.anodes)),  # type: ignore[arg-type]
        cnodes=tuple(map(new, graph.cnodes)),  # type: ignore[arg-type]
    )
    return replace(made, graph=edited)


def test_the_same_call_is_the_same_function_by_position() -> None:
    good, plan = _twice("replay { %a, %b = ns.two(%x, 1) }")
    assert isinstance(verify(good, plan), ProvenPlan)
    form = good.graph.cnode["F1"].replay
    assert form is not None
    bad = _edit(good, "F1", replay=replace(form, writes=("b", "a")))
    assert _codes(bad, plan) == ["FB0824"]


def test_z3_refutes_swapped_results_of_the_same_call() -> None:
    """Also where the statements were not refused before: the proof does not rest on that."""
    good, plan = _twice("replay { %a, %b = ns.two(%x, 1) }")
    read = read_statements(good)
    assert isinstance(read, Statements)
    c = good.graph.cnode["F1"]
    swapped = replace(c, replay=Replay(("b", "a"), c.call))
    statements = replace(read, cnodes={**read.cnodes, "F1": swapped})
    events = unfold(statements, plan)
    assert isinstance(events, list)
    wrong = prove_values(statements, events, Inquiry(60))
    assert isinstance(wrong, WrongValues)
    assert [(m.rule, m.subject) for m in wrong.clauses] == [("read", "b")]


def test_a_swap_in_the_text_is_refused_where_it_stands() -> None:
    with pytest.raises(FBError) as refused:
        _twice("replay { %b, %a = ns.two(%x, 1) }")
    assert {d.code for d in refused.value.diagnostics} == {"FB0230"}
    assert [d.span and d.span.line for d in refused.value.diagnostics] == [9, 9]


@pytest.mark.parametrize("other", ["ns.two(%x, 1.0)", "ns.two(%x, true)", "ns.swapped(%x, 1)"])
def test_another_call_is_an_assumption(other: str) -> None:
    made, plan = _twice(f"replay {{ %b, %a = {other} }}")
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    assert "replay-forms" in [a.key for a in answer.assuming]
    assert not same_call(made.graph.cnode["F1"].call, made.graph.cnode["F1"].replay.call)  # type: ignore[union-attr]


def test_a_replay_form_that_never_runs_is_not_assumed() -> None:
    made, plan = _twice("replay { %b, %a = ns.other(%x) }")
    once = replace(plan, steps=plan.steps[:2])
    assert "replay-forms" in [a.key for a in assumptions(made, plan)]
    assert "replay-forms" not in [a.key for a in assumptions(made, once)]


# Bytes.


def test_fewer_bytes_than_the_shape_takes_are_refused() -> None:
    made, plan = schedule(PLAN)
    assert _codes(_edit(made, "h", size=Const(31)), plan) == ["FB0825"]
    assert isinstance(verify(_edit(made, "h", size=Const(32)), plan), ProvenPlan)
    with pytest.raises(FBError) as refused:
        parse_program(GRAPH.replace("%h : act f32[8] bytes 100", "%h : act f32[8] bytes 31"))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0231"
    assert diagnostic.span is not None
    assert diagnostic.span.line == 9


def test_what_the_caller_expanded_is_assumed() -> None:
    made, plan = schedule(PLAN)
    answer = verify(_edit(made, "x", size=Const(4)), plan)
    assert isinstance(answer, ProvenPlan)
    assert ("expanded", "elements of %x share bytes (expanded by the caller)") in [
        (a.key, a.text) for a in answer.assuming
    ]
    assert _codes(_edit(made, "w", size=Const(4)), plan) == ["FB0825"]


SYMBOLIC = GRAPH.replace("target", "sym b in [1, 64] = 8 of arg 0 dim 0\ntarget")
SYMBOLIC = SYMBOLIC.replace("%x : input f32[8]", "%x : input f32[b]")


@pytest.mark.parametrize(
    ("size", "code"),
    [
        ("4*b", None),
        ("100 + 4*b - 99", None),
        ("max(4*b, 200)", None),
        ("(b - 30)*(b - 30)", "FB0825"),  # enough at the sample and at both ends
        ("roundup(4*b, 512)", None),
        ("(b - 20)*(b - 20) + 84", None),  # 4*b at b = 22
        ("(b - 20)*(b - 20) + 83", "FB0825"),
    ],
)
def test_bytes_hold_the_shape_over_the_ranges(size: str, code: str | None) -> None:
    graph = SYMBOLIC.replace("%h : act f32[8] bytes 100", f"%h : act f32[b] bytes {size}")
    made, plan = schedule(PLAN, graph)
    assert _codes(made, plan) == ([] if code is None else [code])


B, S = Sym("b"), Sym("s")


@pytest.mark.parametrize(
    ("size", "least", "known"),
    [
        (Mul((Const(32), B)), Mul((Const(4), Mul((B, Const(8))))), True),
        (Mul((Const(4), B, S)), Mul((S, Const(4), B)), True),
        (Add((Mul((B, B)), Const(1))), Mul((B, B)), True),
        (RoundUp(Mul((Const(4), B, S)), 512), Mul((Const(4), B, S)), True),
        (Max((Const(0), Mul((B, S)))), Mul((B, S)), True),
        (Mul((Const(3), B, S)), Mul((Const(4), B, S)), False),
        (Mul((B, S)), Mul((B, B)), False),
        (Mul((B,) * 3000), Mul((B, S)), False),
    ],
)
def test_what_multiplying_out_shows(size: Expr, least: Expr, known: bool) -> None:
    assert is_at_least(size, least, {"b": (1, 64), "s": (1, 999)}) is known


# The target, the header, huge numbers, the time limit.


def test_the_memory_of_the_target_is_a_budget() -> None:
    made, plan = schedule(PLAN)
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    peak = answer.proven.device_bytes
    fits = replace(made, target=replace(made.target, memory_bytes=peak))
    assert isinstance(verify(fits, plan), ProvenPlan)
    tiny = replace(made, target=Target("tiny", peak - 1, 16))
    refuted = verify(tiny, plan)
    assert isinstance(refuted, Refuted)
    (diagnostic,) = refuted.diagnostics
    assert diagnostic.code == "FB0826"
    assert 'the target "tiny" has' in diagnostic.message
    assert diagnostic.hint is not None


@pytest.mark.parametrize(
    "header",
    [
        Header(device="cuda"),
        Header(threads=99),
        Header(torch_version="9.9"),
        Header(costs="roofline"),
        Header(source="other.py:f"),
        Header(sha256="00"),
        Header(replays="compared"),
    ],
)
def test_a_certificate_does_not_survive_another_header(header: Header) -> None:
    made, plan = schedule(PLAN)
    made = replace(made, header=Header())
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    held = replace(made, schedules=(plan,), proven=(answer.proven,))
    assert not accept_certificate(held, plan, answer.proven)
    edited = replace(held, header=header)
    assert certificate_sha256(edited, plan) != answer.proven.graph_sha256
    assert [d.code for d in accept_certificate(edited, plan, answer.proven)] == ["FB0830"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: _edit(p, "h", size=Const(10**4299)),
        lambda p: _edit(p, "h", size=Mul((Const(10**3000), Const(10**3000)))),
        lambda p: _edit(p, "F1", time_ns=10**4305),
        lambda p: _edit(p, "F1", workspace=Const(2**63)),
        lambda p: replace(p, target=Target("t", None, 10**5000)),
    ],
    ids=["size", "product", "time", "workspace", "granularity"],
)
def test_huge_numbers_are_refused_and_raise_nothing(edit) -> None:  # type: ignore[no-untyped-def]
    made, plan = schedule(PLAN)
    assert "FB0827" in _codes(edit(made), plan)


@pytest.mark.parametrize(("digits", "code"), [(4200, "FB0111"), (100, "FB0213")])
def test_a_symbol_beyond_any_machine_is_refused(digits: int, code: str) -> None:
    wide = SYMBOLIC.replace("[1, 64]", f"[1, {'9' * digits}]")
    power = wide.replace(
        "%h : act f32[8] bytes 100", f"%h : act f32[8] bytes {'*'.join('b' * 400)}"
    )
    start = time.process_time()
    with pytest.raises(FBError) as refused:
        parse_program(power)
    assert refused.value.diagnostics[0].code == code
    assert time.process_time() - start < 5


def test_the_time_limit_holds_in_plain_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression of one line over a wide range: the search for its greatest value is cut, here
    after the tenth box, as each takes 10 of 95 units."""
    bomb = ", ".join(f"(b - {k})*({k + 7} - b) + floordiv(b*b, {k + 1})" for k in range(60))
    graph = SYMBOLIC.replace("[1, 64]", "[1, 1000000]").replace(
        "%h : act f32[8] bytes 100", f"%h : act f32[8] bytes max({bomb}) + 10000000000000"
    )
    made, plan = schedule(PLAN, graph)
    skip, highest, boxes = skips(monkeypatch), Rows.highest, list[object]()

    def slow(self: Rows, box: Any) -> int:
        boxes.append(box)
        skip(10 * HANGS_S)
        return highest(self, box)

    monkeypatch.setattr(Rows, "highest", slow)
    answer = verify(made, plan, time_limit_s=95 * HANGS_S, scope="range")
    assert isinstance(answer, Undecided)
    assert len(boxes) == 10


# What is assumed.


def test_every_proof_says_what_it_assumes_and_its_certificate_too() -> None:
    made, plan = schedule(PLAN)
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    keys = tuple(a.key for a in answer.assuming)
    assert keys[:2] == ("graph", "operators")
    assert {"replay-forms", "costs-none", "loss"} <= set(keys)
    assert len(keys) <= 7
    c = answer.proven.certificate
    assert c is not None
    assert c.assuming == keys
    text = format_program(replace(made, schedules=(plan,), proven=(answer.proven,)))
    assert parse_program(text).proven == (answer.proven,)
    silent = parse_program(text.replace('assuming "graph", ', "assuming "))
    (diagnostic,) = accept_certificate(silent, plan, silent.proven[0])
    assert diagnostic.code == "FB0831"


def test_symbols_at_the_sample_only_are_told() -> None:
    made, plan = schedule(PLAN, SYMBOLIC)
    assert "sample" in [a.key for a in assumptions(made, plan)]
    assert "sample" not in [a.key for a in assumptions(made, plan, ["b"])]


def test_a_gradient_that_no_tangent_reaches_is_told() -> None:
    made, plan = schedule(PLAN)
    assert "constant-gradients" not in [a.key for a in assumptions(made, plan)]
    call = replace(made.graph.cnode["B5"].call, args=())
    assert "constant-gradients" in [a.key for a in assumptions(_edit(made, "B5", call=call), plan)]


def test_the_costs_say_where_they_come_from() -> None:
    made, plan = schedule(PLAN)
    for costs, words in {"measured": "measured on cuda", "roofline": "roofline for cpu"}.items():
        header = Header(device="cuda", threads=4, torch_version="2.13.0", costs=costs)  # type: ignore[arg-type]
        texts = {a.key: a.text for a in assumptions(replace(made, header=header), plan)}
        assert words in texts[f"costs-{costs}"]
