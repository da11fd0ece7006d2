"""Damaged texts, read in runs of lines and by the grammar alone: one language, and no crash.

`check(text)` says what became of a text and raises `Disagreement` when the two readings differ, in
the program or in a single place. Whatever else it raises is a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from random import Random

from helpers.paths import CONFORMANCE
from helpers.programs.strategies import random_program, random_schedule
from helpers.text.mutations import by_structure, by_token, tokens
from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.span import Span
from remat_compile.ir.text.parser import read_quickly, read_syntax
from remat_compile.ir.text.printer import format_program

CORPUS = CONFORMANCE / "valid"
LONGEST = 2200
WITHOUT_PLACE = ("FB0208",)
"""What is missing stands nowhere: a graph without a loss."""


class Disagreement(Exception):
    """The two readings of a text differ."""


def inputs(seed: int, count: int) -> Iterator[str]:
    """Damaged texts: conformance files and random programs with schedules, in equal parts."""
    corpus = [path.read_text(encoding="utf-8") for path in sorted(CORPUS.glob("*.fbir"))]
    corpus = [text for text in corpus if len(text) <= LONGEST]
    pool = sorted({word for text in corpus for word in tokens(text)})
    rng = Random(seed)
    for _ in range(count):
        text = rng.choice(corpus) if rng.random() < 0.5 else _made(rng)
        yield by_structure(rng, text) if rng.random() < 0.75 else by_token(rng, text, pool)


def _made(rng: Random) -> str:
    program = random_program(rng, size=rng.choice((1, 1, 2)))
    for index in range(rng.choice((1, 1, 2))):
        schedule = random_schedule(rng, program, copy=rng.choice((0.0, 0.3)), name=f"plan{index}")
        program = program.with_schedule(schedule)
    return format_program(program)


def check(text: str) -> str:
    """`quick` (read in runs), `grammar` (read, but not in runs) or `refused`."""
    quick = read_quickly(text)
    try:
        alone = read_syntax(text, by_grammar_alone=True)
    except FBError as error:
        if quick is not None:
            raise Disagreement(f"the grammar refuses: {error}") from error
        if any(diagnostic.span is None for diagnostic in error.diagnostics):
            raise Disagreement(f"no place: {error}") from error
        return "refused"
    if quick is not None:
        if repr(quick) != repr(alone):
            raise Disagreement("another program")
        if list(_places(quick)) != list(_places(alone)):
            raise Disagreement("other places")
    _use(alone, text)
    return "grammar" if quick is None else "quick"


def _use(program: Program, text: str) -> None:
    """What is well-formed is written, read again and simulated."""
    if diagnostics := check_program(program, text):
        if any(d.span is None for d in diagnostics if d.code not in WITHOUT_PLACE):
            raise Disagreement(f"no place: {diagnostics}")
        return
    written = format_program(program)
    if repr(read_syntax(written, by_grammar_alone=False)) != repr(program):
        raise Disagreement("written and read again, it is another program")
    for schedule in program.schedules:
        try:
            simulate(program, schedule)
        except FBError:
            continue


def _places(node: object) -> Iterator[Span | None]:
    """The spans of everything in a program, in order."""
    if isinstance(node, tuple):
        for part in node:
            yield from _places(part)
    elif is_dataclass(node) and not isinstance(node, Span):
        for field in fields(node):
            value = getattr(node, field.name)
            if field.name == "span":
                yield value
            else:
                yield from _places(value)
