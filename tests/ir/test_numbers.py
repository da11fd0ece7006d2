"""What is too large to reckon with is refused, at its place, and what is left is linear to read."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Add, Const, Expr, Max, Mul, Sym, evaluate, too_large
from remat_compile.ir.graph import Call
from remat_compile.ir.program import Header, Program
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program

TEXT = """fbir 1
sym b in [1, 9] = 2 of arg 0 dim 0
graph @g {
  %x : input f32[b] bytes 4*b
  %y : output f32[b] bytes 4*b
  %dy : tangent f32[b] bytes 4*b
  F1: fwd %y = ns.f(%x)
  L: loss %dy = loss(%y)
}
schedule @plan {
  F1
  L
  free %dy
}
"""


def codes(text: str) -> list[str]:
    with pytest.raises(FBError) as refused:
        parse_program(text)
    assert all(d.span is not None for d in refused.value.diagnostics)
    return [d.code for d in refused.value.diagnostics]


def accepted(program: Program) -> list[str]:
    return [d.code for d in check_program(program)]


@pytest.mark.parametrize(
    "number", [str(2**63), str(2**64 - 1), str(-(2**63)), "007", "1e308", "-0"]
)
def test_numbers_at_the_limits(number: str) -> None:
    program = parse_program(TEXT.replace("(%x)", f"(%x, {number})"))
    assert parse_program(format_program(program)) == program


@pytest.mark.parametrize("version", ["-0", "+1", "01", "1.0", "2", "1_0", '"1"', "1e0"])
def test_the_version_is_exactly_one(version: str) -> None:
    assert codes(TEXT.replace("fbir 1", f"fbir {version}")) == ["FB0102"]
    assert codes(TEXT.replace("fbir 1", f"fbir\r{version}")) == ["FB0102"]


def test_no_version() -> None:
    assert codes(TEXT.replace("fbir 1", "fbir")) == ["FB0101"]
    assert codes(TEXT.replace("fbir 1", "fbir // 1")) == ["FB0101"]
    assert codes(TEXT.replace("fbir 1", "fbir-0")) == ["FB0102"]


def test_magnitude_bounds_every_value_and_every_part() -> None:
    b = Sym("b")
    assert not too_large(b, {"b": 10**100})
    assert too_large(b, {"b": 10**100 + 1})
    assert too_large(Mul((b, Const(-2))), {"b": 10**100})
    assert too_large(Mul((Const(0), b, b)), {"b": 10**60})
    assert too_large(Add((b, Const(-1))), {"b": 10**100})
    assert not too_large(Max((b, Const(7))), {"b": 10**100})
    wide: Expr = Mul((Add((b, Const(1))),) * 30)
    assert too_large(wide, {"b": 10**4}) == (evaluate(wide, {"b": 10**4}) > 10**100)


def test_sizes_and_times_of_programs_built_by_code() -> None:
    program = parse_program(TEXT)
    f1, loss = program.graph.cnodes

    def with_f1(**changes: object) -> Program:
        changed = replace(f1, **changes)  # type: ignore[arg-type]
        return replace(program, graph=replace(program.graph, cnodes=(changed, loss)))

    assert accepted(with_f1(time_ns=2**60 - 1)) == []
    assert accepted(with_f1(time_ns=2**60)) == ["FB0224"]
    assert accepted(with_f1(workspace=Const(2**60 - 25))) == []
    assert accepted(with_f1(workspace=Const(2**60 - 24))) == ["FB0224"]
    assert accepted(with_f1(call=Call("ns.f", (*f1.call.args, -(2**63))))) == []
    assert accepted(with_f1(call=Call("ns.f", (*f1.call.args, (1, (2**64,)))))) == ["FB0222"]
    assert accepted(with_f1(call=Call("ns.f", (*f1.call.args, "\ud800")))) == ["FB0220"]
    assert accepted(replace(program, header=Header(device="a\0"))) == ["FB0220"]


def test_sums_are_rounded_up_as_allocated() -> None:
    """Three allocations of 2^40 each are far below 2^60, 2^20 of them are not."""
    text = TEXT.replace("graph @g", 'target "t" { granularity 1TiB }\ngraph @g')
    program = parse_program(text)
    k = replace(program.graph.anodes[0], kind="const", size=Const(1))
    many = tuple(replace(k, name=f"k{i}") for i in range(1 << 10))
    graph = replace(program.graph, anodes=(*many, *program.graph.anodes))
    assert accepted(replace(program, graph=graph)) == []
    large = replace(k, name="large", size=Const((1 << 60) - (1 << 41)))
    graph = replace(graph, anodes=(large, *graph.anodes))
    assert accepted(replace(program, graph=graph)) == ["FB0224"]
    assert codes(text.replace("1TiB", "2TiB")) == ["FB0221"]


@pytest.mark.parametrize("entry", ["copy_latency", "copy_issue"])
def test_times_of_copies_have_a_limit(entry: str) -> None:
    def text(ns: int) -> str:
        return TEXT.replace("graph @g", f'target "t" {{ {entry} {ns}ns }}\ngraph @g')

    assert format_program(parse_program(text(1 << 40))).count(f" {entry} ") == 1
    assert f" {entry} " not in format_program(parse_program(text(0)))
    assert codes(text((1 << 40) + 1)) == ["FB0221"]


@pytest.mark.parametrize(
    ("operator", "code"),
    [
        ("aten.add_.Tensor", "FB0225"),
        ("aten.__ior__.Scalar", "FB0225"),
        ("aten.add.out", "FB0225"),
        ("aten.div.out_mode", "FB0225"),
        ("aten.tanh_backward.grad_input", "FB0225"),
        ("aten._foo_.default", "FB0942"),
        ("aten.relu_", "FB0942"),
        ("aten.topk.Tensor_out", "FB0942"),
        ("c10d.broadcast_.default", "FB0942"),
        ("aten.empty_like.default", "FB0232"),
        ("aten.native_dropout.default", "FB0211"),
        ("aten.alias.default", "FB0904"),
        ("aten._unsafe_view.default", "FB0904"),
        ("aten.__and__.Scalar", None),
        ("aten._softmax.default", None),
        ("aten.outer.default", None),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", None),
        ("ns.f_", None),
    ],
)
def test_what_operators_do_by_the_table(operator: str, code: str | None) -> None:
    text = TEXT.replace("ns.f(", f"{operator}(")
    view = TEXT.replace("  F1:", f"  %v = view of %x {operator}(%x)\n  F1:")
    if code is None:
        parse_program(text)
    else:
        assert codes(text) == [code]
    if code == "FB0904" or operator == "ns.f_":
        parse_program(view)
    else:
        assert codes(view) == ["FB0904" if code is None or code == "FB0211" else code]


def with_argument(text: str) -> str:
    return TEXT.replace("(%x)", f"(%x{text})")


def with_size(text: str) -> str:
    return TEXT.replace("4*b\n  %y", f"{text}\n  %y")


def with_lines(text: str, before: str) -> str:
    return TEXT.replace(before, text + before)


BOMBS: dict[str, Callable[[int], str]] = {
    "long call": lambda n: with_argument(", 1" * n),
    "product": lambda n: with_argument(", " + "*".join(["9"] * n)),
    "nested": lambda n: with_argument((", " + "[" * 60 + "]" * 60) * (n // 60)),
    "unknown names": lambda n: with_argument("".join(f", %q{i}" for i in range(n // 2))),
    "wide size": lambda n: with_size("*".join(["(b+1)"] * (n // 4))),
    "unknown symbols": lambda n: with_size(" + ".join(f"q{i}" for i in range(n // 2))),
    "symbols": lambda n: with_lines(
        "".join(f"sym s{i} in [1, 2] = 1 of arg 0 dim 0\n" for i in range(n // 4)), "graph"
    ),
    "views": lambda n: with_lines(
        "".join(f"  %v{i} = view of %x t(%x)\n" for i in range(n)), "  L:"
    ),
    "long string": lambda n: TEXT.replace("(%x)", f'(%x) at "{"m" * 500 * n}"'),
    "long name": lambda n: TEXT.replace("F1", "F" * 500 * n),
    "blanks": lambda n: TEXT.replace("(%x)", "(%x)" + " \t" * 250 * n + "time 1ns"),
    "comment": lambda n: TEXT + "/" * 500 * n,
}


@pytest.mark.parametrize("name", BOMBS)
def test_reading_takes_linear_time(name: str) -> None:
    """Four times the text, four times the seconds; a quadratic reader would take sixteen."""
    seconds = []
    for n in (500, 2000):
        text = BOMBS[name](n)
        start = time.process_time()
        with suppress(FBError):
            parse_program(text)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * seconds[0] + 0.2
