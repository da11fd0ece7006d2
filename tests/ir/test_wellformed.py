"""Well-formedness of programs built by code; `spec/conformance/invalid` has those from text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from helpers.programs.strategies import programs
from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Add, Const, Sym
from remat_compile.ir.graph import Arg, Atom, Call, CNode, Ref
from remat_compile.ir.program import BufferBinding, Program
from remat_compile.ir.span import Span
from remat_compile.ir.text.parser import parse_program

TEXT = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %k : const f32[4] bytes 16
  %y : output f32[4] bytes 16
  %dy : tangent f32[4] bytes 16
  F1: fwd %y = ns.f(%x, %k)
  L: loss %dy = loss(%y)
}
bind { arg "args[0]" = %x; buffer "k" = %k; result %y tangent %dy }
"""


def codes(program: Program) -> list[str]:
    return [d.code for d in check_program(program)]


@given(programs(schedules=1))
def test_generated_programs_are_well_formed(program: Program) -> None:
    assert check_program(program) == ()


def with_f1(change: Callable[[CNode], CNode]) -> Program:
    program = parse_program(TEXT)
    f1, loss = program.graph.cnodes
    return replace(program, graph=replace(program.graph, cnodes=(change(f1), loss)))


@pytest.mark.parametrize(
    "arg",
    [Const(5), Add((Const(1), Const(2))), Atom("dtype", "a b"), Atom("layout", "")],
)
def test_arguments_that_text_cannot_hold(arg: Arg) -> None:
    program = with_f1(lambda c: replace(c, call=Call("ns.f", (Ref("x"), Ref("k"), (arg,)))))
    assert codes(program) == ["FB0220"]


@pytest.mark.parametrize("name", ["free", "a b", "1F", "", "F:", "send"])
def test_cnode_names_that_text_cannot_hold(name: str) -> None:
    assert codes(with_f1(lambda c: replace(c, name=name))) == ["FB0220"]


def test_operators_and_keywords_that_text_cannot_hold() -> None:
    assert codes(with_f1(lambda c: replace(c, call=replace(c.call, op="a::b")))) == ["FB0220"]
    named = (("a.b", 1), ("true", 2))
    assert codes(with_f1(lambda c: replace(c, call=replace(c.call, kwargs=named)))) == [
        "FB0220",
        "FB0220",
    ]


def test_deep_lists() -> None:
    deep: Arg = 1
    for _ in range(70):
        deep = (deep,)
    call = Call("ns.f", (Ref("x"), Ref("k"), deep))
    assert codes(with_f1(lambda c: replace(c, call=call))) == ["FB0220"]


def test_bindings_that_text_cannot_hold() -> None:
    program = parse_program(TEXT)
    nameless = replace(program.binding, buffers=(BufferBinding((), "k", None),))
    assert codes(replace(program, binding=nameless)) == ["FB0220"]
    backwards = replace(program.binding, input_grads=((1, "y"), (0, "y")))
    assert "FB0220" in codes(replace(program, binding=backwards))


def test_unknown_symbols_are_reported_once_per_statement() -> None:
    program = with_f1(lambda c: replace(c, workspace=Sym("b"), call=replace(
        c.call, args=(*c.call.args, Sym("b")))))  # fmt: skip
    assert codes(program) == ["FB0214"]


def test_negative_times() -> None:
    assert codes(with_f1(lambda c: replace(c, time_ns=-1))) == ["FB0215"]


def test_a_program_without_a_binding_is_well_formed() -> None:
    assert check_program(parse_program(TEXT.replace(TEXT[TEXT.index("bind") :], ""))) == ()


def test_everything_is_reported_in_the_order_of_the_text() -> None:
    text = TEXT.replace("(%x, %k)", "(%xx, %k)").replace("result %y", "result %dy")
    text = text.replace("%k : const f32", "%k : const f31")
    with pytest.raises(FBError) as error:
        parse_program(text, "t")
    assert [(d.code, d.span) for d in error.value.diagnostics] == [
        ("FB0219", Span(4, 14, 17, "t")),
        ("FB0201", Span(7, 21, 24, "t")),
        ("FB0217", Span(10, 52, 55, "t")),
    ]
    assert 'Did you mean "x"?' in error.value.diagnostics[1].message
