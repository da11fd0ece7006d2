"""Everything under `spec/conformance` does what its first lines say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lark import Lark

from remat_compile.ir.diagnostics import FBError, render
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program

SPEC = Path(__file__).parents[2] / "spec"
VALID = sorted((SPEC / "conformance" / "valid").glob("*.fbir"))
INVALID = sorted((SPEC / "conformance" / "invalid").glob("*.fbir"))
EXPECTED_RUN = re.compile(
    r"// expect @(\"[^\"]*\"|\S+) device (\d+) activation (\d+)(?: host (\d+))?"
    r" time ([\d.]+)(ns|us|ms|s)"
)
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def read_and_run(text: str, file: str) -> None:
    program = parse_program(text, file)
    for schedule in program.schedules:
        simulate(program, schedule)


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid(path: Path) -> None:
    text = read(path)
    program = parse_program(text, path.name)
    assert read_syntax(text, path.name, by_grammar_alone=True) == program
    written = format_program(program)
    again = parse_program(written)
    assert again == program
    assert repr(again) == repr(program)
    assert format_program(again) == written
    expected = {
        name.strip('"'): (
            int(device),
            int(activation),
            int(host or 0),
            round(float(time) * UNITS[unit]),
        )
        for name, device, activation, host, time, unit in EXPECTED_RUN.findall(text)
    }
    traces = {s.name: simulate(program, s) for s in program.schedules}
    assert expected == {
        name: (t.peak_bytes, t.activation_peak_bytes, t.host_peak_bytes, t.time_ns)
        for name, t in traces.items()
    }


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid(path: Path) -> None:
    text = read(path)
    expected = text.split("\n", 1)[0].removeprefix("// expect ").split("; ")
    with pytest.raises(FBError) as refused:
        read_and_run(text, path.name)
    diagnostics = refused.value.diagnostics
    assert [f"{d.code} at {d.span.line}:{d.span.column}" for d in diagnostics if d.span] == expected
    assert path.stem[:6].upper() in {d.code for d in diagnostics}
    for d in diagnostics:
        assert d.span is not None
        assert d.span.file == path.name
        assert d.span.end_column > d.span.column
        assert "^" in render(d, text) or not text.split("\n")[d.span.line - 1]


def test_there_are_enough_files() -> None:
    assert len(VALID) >= 8
    assert sum(path.stem.startswith("fb0101") for path in INVALID) >= 10


def test_the_valid_files_use_every_construct() -> None:
    """Every alternative of the grammar that is a rule of its own appears in a valid file."""
    grammar = (SPEC.parent / "src/remat_compile/ir/text/fbir.lark").read_text(encoding="utf-8")
    grammar = re.sub(
        r"^(\w+:[^|\n]*?) +-> \w+$", r"\1", grammar, flags=re.M
    )  # lists by their names
    rules = {m for m in re.findall(r"^\??(\w+):", grammar, re.M) if m.islower()}
    rules |= set(re.findall(r"-> (\w+)", grammar))
    rules -= {r for r in rules if r.startswith("_")}
    starts = ["start", "argument", "expr"]
    oracle = Lark(grammar, parser="lalr", lexer="contextual", start=starts)
    used: set[str] = set()
    for path in VALID:
        tree = oracle.parse(read(path) + "\n", start="start")
        used |= {str(sub.data) for sub in tree.iter_subtrees()}
    transparent = {"expr", "operand", "capture", "entry", "attribute", "cost"}
    assert rules - used - transparent == set()
