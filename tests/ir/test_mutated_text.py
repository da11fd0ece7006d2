"""Texts with a few words deleted, repeated or swapped: refused with a place, or read exactly."""

from __future__ import annotations

import re
from random import Random

import pytest

from helpers.programs.strategies import random_program, random_schedule
from remat_compile.ir.diagnostics import Diagnostic, FBError, render
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program

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
