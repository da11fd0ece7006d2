"""Reading and writing the text form: exact round trips, places, and messages."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.planners.graphs import chain
from helpers.programs.strategies import exprs, programs
from remat_compile.ir.collector import collector_paused
from remat_compile.ir.diagnostics import FBError, render
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
    format_expr,
)
from remat_compile.ir.graph import ANode, ANodeKind, Call, CNode, Graph, Ref, View
from remat_compile.ir.program import Program, Target
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.ir.span import Loc, Span
from remat_compile.ir.text.parser import LONG, parse_program, read_syntax
from remat_compile.ir.text.printer import format_program, format_statement, graph_sha256
from remat_compile.ir.text.syntax import format_amount, format_duration

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
"""What a string of the language holds."""
INT64 = st.integers(-(2**63), 2**64 - 1)

SMALL = """fbir 1
sym b in [1, 64] = 8 of arg 0 dim 0
graph @g {
  %x : input f32[b] bytes 4*b
  %y : output f32[b] bytes 4*b
  %dy : tangent f32[b] bytes 4*b
  F1: fwd %y = ns.f(%x, 1) at model.py:3 "f"
  L: loss %dy = loss(%y)
}
schedule @plan { F1; L; free %dy }
"""

B, S = Sym("b"), Sym("s")


def only_argument(text: str) -> object:
    program = parse_program(SMALL.replace("(%x, 1)", f"(%x, {text})"))
    return program.graph.cnode["F1"].call.args[1]


def size_of(text: str) -> Expr:
    line = f"  %e : const f32[] bytes {text}\n"
    return read_syntax(SMALL.replace("  F1:", f"{line}  F1:")).graph.anode["e"].size


@given(programs(schedules=2))
def test_round_trip(program: Program) -> None:
    text = format_program(program)
    again = parse_program(text)
    assert again == program
    assert repr(again) == repr(program)  # also true and 1, 0.0 and -0.0 apart
    assert format_program(again) == text


@given(programs(schedules=1))
def test_the_quick_reader_and_the_grammar_agree(program: Program) -> None:
    text = format_program(program)
    quick, slow = (
        read_syntax(text, "f", by_grammar_alone=False),
        read_syntax(text, "f", by_grammar_alone=True),
    )
    assert repr(quick) == repr(slow)
    assert places(quick) == places(slow)


def places(program: Program) -> list[Span | None]:
    graph = program.graph
    nodes: tuple[ANode | View | CNode, ...] = (*graph.anodes, *graph.views, *graph.cnodes)
    steps = [step.span for schedule in program.schedules for step in schedule.steps]
    return [node.span for node in nodes] + steps


@given(exprs())
def test_expressions_round_trip(expr: Expr) -> None:
    assert size_of(format_expr(expr)) == expr


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Add((B, Add((S, Const(1))))), "b + (s + 1)"),
        (Add((Add((B, S)), Const(1))), "(b + s) + 1"),
        (Mul((B, Mul((S, Const(2))))), "b*(s*2)"),
        (Mul((Add((B, Const(1))), S)), "(b + 1)*s"),
        (Mul((B, Const(-2))), "b*(-2)"),
        (Mul((Const(-2), B)), "-2*b"),
        (Add((B, Const(-1))), "b - 1"),
        (Add((Const(-1), B)), "-1 + b"),
        (Add((B, Mul((Const(-3), S)))), "b - 3*s"),
        (Add((B, Mul((Const(-1), S)))), "b + -1*s"),
        (Add((B, Mul((Const(-3), Add((S, Const(1))))))), "b - 3*(s + 1)"),
        (FloorDiv(Add((B, S)), 2), "floordiv(b + s, 2)"),
        (Add((FloorDiv(B, 2), CeilDiv(S, 3))), "floordiv(b, 2) + ceildiv(s, 3)"),
        (Mul((Const(4), Max((Const(1), FloorDiv(B, 2))))), "4*max(1, floordiv(b, 2))"),
        (RoundUp(Mul((B, S)), 512), "roundup(b*s, 512)"),
        (FloorDiv(Const(5), 2), "floordiv(5, 2)"),
    ],
)
def test_structure_of_expressions_survives(expr: Expr, text: str) -> None:
    assert format_expr(expr) == text
    assert size_of(text) == expr


def test_subtraction_is_read_as_a_sum() -> None:
    assert size_of("b - s") == Add((B, Mul((Const(-1), S))))
    assert size_of("b - 2*s") == Add((B, Mul((Const(-2), S))))
    assert size_of("b - -3") == Add((B, Const(3)))


@pytest.mark.parametrize("text", ["2*3 + 1", "(7)", "max(7, 1)", "floordiv(15, 2)"])
def test_an_argument_without_symbols_is_a_plain_integer(text: str) -> None:
    assert only_argument(text) == 7
    assert type(only_argument(text)) is int


@given(st.floats() | INT64 | st.booleans() | st.none() | TEXT)
def test_literals_are_exact(value: float | int | bool | str | None) -> None:
    program = parse_program(SMALL)
    f1, loss = program.graph.cnodes
    f1 = replace(f1, call=Call("ns.f", (Ref("x"), value)))
    changed = replace(program, graph=replace(program.graph, cnodes=(f1, loss)))
    literal = parse_program(format_program(changed)).graph.cnode["F1"].call.args[1]
    assert repr(literal) == repr(value)


@given(TEXT, st.integers(0, 10**6), TEXT)
def test_places_in_the_model_are_exact(file: str, line: int, module: str) -> None:
    program = parse_program(SMALL)
    f1, loss = program.graph.cnodes
    cnodes = (replace(f1, loc=Loc(file, line, module)), loss)
    changed = replace(program, graph=replace(program.graph, cnodes=cnodes))
    assert parse_program(format_program(changed)) == changed


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0ns"), (999, "999ns"), (1000, "1us"), (12_400, "12.4us"), (1_000_001, "1.000001ms"),
     (10**9, "1s"), (1_234_567_891, "1.234567891s")],
)  # fmt: skip
def test_times_are_exact(time_ns: int, text: str) -> None:
    assert format_duration(time_ns) == text
    changed = SMALL.replace(" at model.py", f" time {text} at model.py")
    assert parse_program(changed).graph.cnode["F1"].time_ns == time_ns


def test_sizes_of_the_target_have_a_unit_only_when_exact() -> None:
    assert format_amount(139 << 30) == "139GiB"
    assert format_amount(1000) == "1000"
    assert format_amount(50 * 10**9, per_second=True) == "50GB/s"
    assert format_amount(123, per_second=True) == "123B/s"
    text = SMALL.replace("sym", 'target "t" { memory 1.5KiB host 2KB d2h 1MiB/s }\nsym')
    with pytest.raises(FBError):
        parse_program(text)  # symbols stand before the target
    text = SMALL.replace("graph", 'target "t" { memory 1.5KiB host 2KB d2h 1MiB/s }\ngraph')
    assert parse_program(text).target == Target("t", 1536, 1, 2000, 1 << 20, None)


def test_nodes_and_steps_have_places() -> None:
    program = parse_program(SMALL, "small.fbir")
    assert program.graph.anode["dy"].span == Span(6, 3, 6, "small.fbir")
    assert program.graph.cnode["F1"].span == Span(7, 3, 5, "small.fbir")
    assert [step.span for step in program.schedules[0].steps] == [
        Span(10, 18, 20, "small.fbir"),
        Span(10, 22, 23, "small.fbir"),
        Span(10, 25, 33, "small.fbir"),
    ]
    assert program.schedules[0].span == Span(10, 10, 15, "small.fbir")


def test_places_do_not_count_for_equality() -> None:
    assert parse_program("\n\n" + SMALL) == parse_program(SMALL)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "  // note\n", ";\n", "\n\n"])
def test_line_ends(ending: str) -> None:
    assert parse_program(SMALL.replace("\n", ending)) == parse_program(SMALL)
    assert parse_program("\ufeff" + SMALL.rstrip("\n")) == parse_program(SMALL)


def test_views_are_written_before_their_first_reader_and_keep_their_order() -> None:
    text = SMALL.replace("  F1:", "  %v = view of %x t(%x)\n  %u = view of %x t(%v)\n  F1:")
    text = text.replace("loss(%y)", "loss(%y, %v)").replace("(%x, 1)", "(%u, 1)")
    program = parse_program(text)
    assert [v.name for v in program.graph.views] == ["v", "u"]
    lines = format_program(program).splitlines()
    assert lines.index("  %u = view of %x t(%v)") == lines.index("  %v = view of %x t(%x)") + 1
    assert parse_program(format_program(program)) == program


def test_messages_show_place_caret_expectation() -> None:
    text = SMALL.replace("ns.f(%x, 1)", "ns.f(%x 1)")
    with pytest.raises(FBError) as error:
        parse_program(text, "small.fbir")
    (diagnostic,) = error.value.diagnostics
    assert render(diagnostic, text) == (
        "small.fbir:7:24: error[FB0101]: `1` cannot stand here; expected `)` or `,`\n"
        '    7 |   F1: fwd %y = ns.f(%x 1) at model.py:3 "f"\n'
        "      |                        ^"
    )


def test_hash_covers_the_model_and_neither_header_nor_schedules() -> None:
    program = parse_program(SMALL)
    digest = graph_sha256(program)
    assert len(digest) == 64
    header = replace(program.header, device="cuda", source="x.onnx")
    assert graph_sha256(replace(program, header=header, schedules=())) == digest
    assert graph_sha256(replace(program, target=Target(granularity_bytes=512))) != digest
    assert graph_sha256(parse_program(SMALL.replace("[1, 64]", "[1, 65]"))) != digest


def test_hash_is_that_of_the_written_text() -> None:
    program = parse_program(SMALL)
    text = format_program(program)
    model = text[text.index("sym b") : text.index("\n\nschedule")]
    assert graph_sha256(program) == hashlib.sha256(model.encode()).hexdigest()


@pytest.mark.parametrize("name", ["mlp", "batchnorm", "literals", "proven", "symbols"])
def test_written_form(name: str, golden: Callable[[Path, str], None]) -> None:
    source = Path(__file__).parents[2] / "spec" / "conformance" / "valid" / f"{name}.fbir"
    written = format_program(parse_program(source.read_text(encoding="utf-8")))
    golden(Path(__file__).parent / "golden" / f"{name}.fbir", written)


def test_lark_is_loaded_only_to_read() -> None:
    code = "import sys, remat_compile.ir.text.parser as p; print('lark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_statements_can_be_written_alone() -> None:
    graph = parse_program(SMALL).graph
    assert format_statement(graph.anode["x"]) == "%x : input f32[b] bytes 4*b"
    assert format_statement(graph.cnode["L"]) == "L: loss %dy = loss(%y)"


def test_a_hundred_thousand_lines_are_read_in_time() -> None:
    """10 s is the aim on an idle machine (about 3 s there); the margin is for shared ones."""
    count = 25_000
    anodes = [ANode("x", "input", "f32", (Const(4),), Const(16))]
    cnodes = []
    for i in range(count):
        kind: ANodeKind = "output" if i == count - 1 else "act"
        anodes.append(ANode(f"h{i}", kind, "f32", (Const(4), Const(i)), Const(16 * i + 1)))
        reads = (Ref(anodes[i].name), 0.5, True, (1, -1))
        cnodes.append(CNode(f"F{i}", "fwd", (f"h{i}",), Call("ns.f", reads), time_ns=i,
                            workspace=Const(i), loc=Loc("m.py", i, "fc")))  # fmt: skip
    anodes.append(ANode("t", "tangent", "f32", (), Const(4)))
    cnodes.append(CNode("L", "loss", ("t",), Call("loss", (Ref(f"h{count - 1}"),))))
    steps = [Compute(c.name) for c in cnodes] + [Free(f"h{i}") for i in range(count - 1)]
    graph = Graph("g", tuple(anodes), (), tuple(cnodes))
    program = Program(graph, schedules=(Schedule("plan", "", tuple(steps)),))
    text = format_program(program)
    assert text.count("\n") > 100_000
    start = time.process_time()
    assert parse_program(text) == program
    assert time.process_time() - start < 20


def test_a_long_text_is_read_with_each_name_and_number_once() -> None:
    """What a graph of 10^6 computations takes in memory hangs on it."""
    text = format_program(chain(600))
    assert len(text) > LONG
    graph = parse_program(text).graph
    names = {a.name: a.name for a in graph.anodes}
    for c in graph.cnodes:
        for ref in c.call.args:
            assert isinstance(ref, Ref)
            assert ref.name is names[ref.name]
        assert all(name is names[name] for name in c.results)
    assert len({id(a.size) for a in graph.anodes}) == len({a.size for a in graph.anodes})


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_goes_on_as_before(was_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with contextlib.suppress(FBError):
            parse_program("fbir 1\n")
        assert gc.isenabled() == was_enabled
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()
