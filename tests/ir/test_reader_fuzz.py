"""Damaged texts are read alike in runs of lines and by the grammar alone; nothing crashes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random

import pytest

from helpers.programs.strategies import random_program, random_schedule
from helpers.slow import default_only
from helpers.text.reader_fuzz import check, inputs
from remat_compile.ir.diagnostics import Diagnostic, FBError, render
from remat_compile.ir.program import Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_quickly, read_syntax
from remat_compile.ir.text.printer import format_program

COUNT = int(os.environ.get("READER_FUZZ_INPUTS", "2000"))
PARTS = 8
FILES = Path(__file__).parents[1] / "redteam/files"
REDTEAM = sorted(path for part in ("parse", "fuzz") for path in (FILES / part).glob("*.fbir"))


@pytest.mark.parametrize("seed", default_only(range(PARTS), range(2)))
def test_damaged_texts(seed: int) -> None:
    seen = {check(text) for text in inputs(seed, COUNT // PARTS)}
    assert seen == {"quick", "grammar", "refused"}


@pytest.mark.parametrize("path", REDTEAM, ids=lambda path: path.stem)
def test_what_the_red_team_found(path: Path) -> None:
    check(path.read_bytes().decode("utf-8"))


def read(name: str) -> str:
    return (FILES / "parse" / f"{name}.fbir").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["steps_inside_proven", "graph_nodes_in_bind"])
def test_lines_of_another_section_are_refused_there(name: str) -> None:
    text = read(name)
    assert read_quickly(text) is None
    with pytest.raises(FBError) as refused:
        read_syntax(text, by_grammar_alone=False)
    first = refused.value.diagnostics[0]
    assert first.code == "FB0101"
    line = text.split("\n").index({"steps_inside_proven": "proven @s {"}.get(name, "bind {")) + 2
    assert first.span is not None
    assert first.span.line == line


def test_steps_belong_to_the_schedule_around_them() -> None:
    by_name = {
        s.name: len(s.steps) for s in parse_program(read("steps_attributed_elsewhere")).schedules
    }
    assert by_name["z"] == 0


def test_a_section_may_be_indented_and_a_cnode_named_like_one() -> None:
    assert parse_program(read("indented_schedule_crash")).schedules
    assert "schedule" in parse_program(read("cnode_named_schedule_col0")).graph.cnode


def test_a_long_text_in_runs_of_lines_is_what_the_grammar_reads() -> None:
    head, steps = read("cnode_named_schedule_col0").split('schedule @s by "x" {\n')
    body = "".join(f"  F{1 + i % 3}\n  free %h1\n  F2 nosave\n  free  %h1\n" for i in range(2000))
    text = f"{head}schedule @s {{\n{body}{steps}"
    assert len(text) > 1 << 16
    assert read_quickly(text) == read_syntax(text, by_grammar_alone=True)


@pytest.mark.parametrize(
    "line",
    ["F9 : fwd ns.f()", "F9: fwd ns.f( 1)", "F9: fwd ns.f(nan =3)", "F9: fwd ns.f() time 1000ns",
     "F9: fwd ns.f(1.50)", "F9: fwd ns.f() workspace 007", "F9: fwd ns.f() at a.py:01"],
)  # fmt: skip
def test_lines_that_the_printer_writes_otherwise_are_left_to_the_grammar(line: str) -> None:
    text = read("cnode_named_schedule_col0").replace("  F2: ", f"  {line}\n  F2: ")
    assert read_quickly(text) in (None, *_alone(text))


def _alone(text: str) -> tuple[Program, ...]:
    try:
        return (read_syntax(text, by_grammar_alone=True),)
    except FBError:
        return ()


# -- Texts with a few words deleted, repeated or swapped -------------------------------------------


WORD = re.compile(r"\s+|[%@]?[\w.]+|.")


def mutated(rng: Random) -> str:
    program = random_program(rng, size=3)
    program = program.with_schedule(random_schedule(rng, program, copy=rng.choice((0.0, 0.3))))
    words = WORD.findall(format_program(program))
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    match rng.randrange(4):
        case 0:
            del words[at]
        case 1:
            words[at] = words[other]
        case 2:
            words.insert(at, words[other])
        case _:
            words[at], words[other] = words[other], words[at]
    return "".join(words)


def outcome(text: str, *, by_grammar_alone: bool) -> str:
    try:
        return repr(read_syntax(text, by_grammar_alone=by_grammar_alone))
    except FBError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(60))
def test_mutations(seed: int) -> None:
    text = mutated(Random(seed))
    assert outcome(text, by_grammar_alone=False) == outcome(text, by_grammar_alone=True)
    diagnostics: tuple[Diagnostic, ...] = ()
    try:
        program = parse_program(text)
        assert repr(parse_program(format_program(program))) == repr(program)
        for schedule in program.schedules:
            simulate(program, schedule)
    except FBError as error:
        diagnostics = error.diagnostics
    for diagnostic in diagnostics:
        assert diagnostic.span is not None
        assert render(diagnostic, text)
