"""A fused program is the composition of the calls of the other: every fault in it is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from helpers.paths import TESTS
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import Call, CNode, InnerCall, Ref
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.check import Accepted, Refused, check
from remat_compile.verifier.obligations.same_values import same_values

DECLARED = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %w : param f32[4] bytes 16
  %rs : rng u8[8] bytes 8
  %d : act f32[4] bytes 16
  %m : act bool[4] bytes 4
  %y : output f32[4] bytes 16
  %dy : tangent f32[4] bytes 16
  %dw : param_grad f32[4] bytes 16
"""
AROUND = """  F0: fwd %d, %m = aten.native_dropout.default(%x, 0.5, true) token %rs
"""
END = """  L: loss %dy = loss(%y)
  B1: bwd %dw = aten.mul.Tensor(%dy, %m) of F0
}
bind {
  arg "args[0]" = %x
  param "w" = %w grad %dw
  result %y tangent %dy
}
"""
PLAIN = parse_program(
    DECLARED.replace("  %y :", "  %t : act f32[4] bytes 16\n  %u : act f32[2] bytes 8\n  %y :")
    + AROUND
    + """  F1: fwd %t = aten.sub.Tensor(%d, %w)
  F2: fwd _, %u = aten.split_copy.Tensor(%t, 2)
  F3: fwd %y = aten.addcmul.default(%t, %u, %w, value=1.0)
"""
    + END
)
TEXT = (
    DECLARED
    + AROUND
    + """  F3: fwd %y = fused(%d, %w) {
    %other = aten.sub.Tensor(%d, %w)
    %half = aten.split_copy.Tensor(%other, 2)[1]
    %y = aten.addcmul.default(%other, %half, %w, value=1.0)
  }
"""
    + END
)
FUSED = parse_program(TEXT)


def test_names_inside_do_not_count() -> None:
    assert same_values(PLAIN, FUSED) == ()
    assert same_values(PLAIN, PLAIN) == ()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("sub.Tensor(%d, %w)", "sub.Tensor(%w, %d)"),
        ("sub.Tensor(%d, %w)", "add.Tensor(%d, %w)"),
        ("2)[1]", "2)[0]"),
        ("(%other, 2)", "(%d, 2)"),
        ("value=1.0", "value=1"),
        ("%half, %w, value", "%w, %half, value"),
    ],
)
def test_another_value_is_seen_where_it_is_made(was: str, now: str) -> None:
    assert was in TEXT
    diagnostics = same_values(PLAIN, parse_program(TEXT.replace(was, now)))
    places = [(d.code, d.span.line) for d in diagnostics if d.span]
    assert places == [("FB0876", 12), ("FB0876", 17), ("FB0876", 18), ("FB0876", 17)]
    assert diagnostics[0].message.startswith("%y is not the value")


def _anode(name: str, **fields: object) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        anodes = tuple(
            replace(a, **fields) if a.name == name else a  # type: ignore[arg-type]
            for a in program.graph.anodes
        )
        return replace(program, graph=replace(program.graph, anodes=anodes))

    return change


def _cnode(name: str, change: Callable[[CNode], CNode]) -> Callable[[Program], Program]:
    def changed(program: Program) -> Program:
        cnodes = tuple(change(c) if c.name == name else c for c in program.graph.cnodes)
        return replace(program, graph=replace(program.graph, cnodes=cnodes))

    return changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_anode("d", size=Const(32)), "declaration of %d"),
        (_anode("x", dtype="f64"), "declaration of %x"),
        (lambda p: replace(p, target=replace(p.target, granularity_bytes=64)), "target"),
        (lambda p: replace(p, binding=replace(p.binding, grads="accumulate")), "binding"),
        (_cnode("F0", lambda c: replace(c, token=None)), "order of random operators"),
    ],
)
def test_what_stands_around_is_the_same(change: Callable[[Program], Program], words: str) -> None:
    diagnostics = same_values(PLAIN, change(FUSED))
    assert diagnostics
    assert {d.code for d in diagnostics} == {"FB0877"}
    assert any(words in d.message for d in diagnostics)


def _at(text: str) -> list[tuple[str, int | None]]:
    return [
        (d.code, None if d.span is None else d.span.line)
        for d in same_values(PLAIN, parse_program(text))
    ]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("    %y =", "    %junk = aten.zeros.default([100000000])\n    %y ="),
        ("    %y =", "    _ = aten.neg.default(%half)\n    %y ="),
        ("    %y =", "    %junk = aten.split_copy.Tensor(%other, 2)[0]\n    %y ="),
    ],
)
def test_a_call_that_nobody_reads_is_seen(was: str, now: str) -> None:
    """It would run, and take bytes, all the same."""
    assert was in TEXT
    assert _at(TEXT.replace(was, now)) == [("FB0876", 12)]


def test_a_cnode_without_results_is_seen() -> None:
    assert _at(TEXT.replace(END, f"  F4: fwd _ = aten.neg.default(%x)\n{END}")) == [("FB0876", 17)]


def test_a_part_of_a_result_is_not_that_result() -> None:
    """`add(…)[0]` is the first row of the sum where `add` gives one tensor."""
    assert ("FB0876", 12) in _at(TEXT.replace("sub.Tensor(%d, %w)", "sub.Tensor(%d, %w)[0]"))


def test_a_term_is_numbered_once_however_often_it_is_read() -> None:
    """x1 = x + x, x2 = x1 + x1, …: linear, though the term written out doubles with each."""
    calls = [InnerCall(("t0",), Call("aten.add.Tensor", (Ref("d"), Ref("w"))))]
    for i in range(200):
        calls.append(InnerCall((f"t{i + 1}",), Call("aten.add.Tensor", (Ref(f"t{i}"),) * 2)))
    calls.append(InnerCall(("y",), Call("aten.neg.default", (Ref("t200"),))))
    call = Call("fused", (Ref("d"), Ref("w")), region=tuple(calls))
    deep = _cnode("F3", lambda c: replace(c, call=call))(FUSED)
    assert same_values(deep, deep) == ()
    assert [d.code for d in same_values(FUSED, deep)][:1] == ["FB0876"]


# -- Regions, as the checker and the verifier's own reader see them --------------------------------


REGION = (TESTS.parent / "spec" / "conformance" / "valid" / "fused.fbir").read_text()

FAULTS = {
    "reads what it is not given": ("%t = aten.mul.Tensor(%xt, %w); ", ""),
    "a sum in place inside": ("aten.tanh.default(%t)", "accumulate(%t, %t)"),
    "the loss inside": ("aten.tanh.default(%t)", "loss(%t)"),
    "a region inside": ("aten.tanh.default(%t)", "fused(%t)"),
    "its result is not made": ("%h = aten.tanh", "%k = aten.tanh"),
    "an argument is written": (
        "%h = aten.tanh.default(%t)",
        "%xt = f(%t); %h = aten.tanh.default(%t)",
    ),
    "a name is written twice": ("%h = aten.tanh", "%t = f(%t); %h = aten.tanh"),
    "another operator": ("= fused(%xt, %w)", "= aten.mul.Tensor(%xt, %w)"),
    "no calls": ("{ %t = aten.mul.Tensor(%xt, %w); %h = aten.tanh.default(%t) }", ""),
    "a result that is not used": ("F1: fwd %h =", "F1: fwd %h, _ ="),
    "calls in a circle": (
        "%t = aten.mul.Tensor(%xt, %w); %h = aten.tanh.default(%t)",
        "%h = aten.tanh.default(%t); %t = aten.mul.Tensor(%h, %w)",
    ),
}  # fmt: skip


def test_both_take_a_region() -> None:
    program = read_syntax(REGION, "fused.fbir")
    for schedule in program.schedules:
        opinion = check(REGION, schedule.name)
        assert isinstance(opinion, Accepted)
        assert (opinion.peak.device, opinion.peak.activation) == (112, 64)
        assert isinstance(verify(program, schedule, text=REGION), ProvenPlan)


@pytest.mark.parametrize("fault", FAULTS)
def test_both_refuse_each_fault(fault: str) -> None:
    was, now = FAULTS[fault]
    assert was in REGION
    text = REGION.replace(was, now)
    program = read_syntax(text, "fused.fbir")
    answer = verify(program, program.schedules[0], text=text)
    assert isinstance(answer, Refuted)
    assert {d.code for d in answer.diagnostics} == {"FB0802"}
    assert all(d.span is not None and d.span.line == 15 for d in answer.diagnostics)
    assert isinstance(check(text, "once"), Refused)
