"""The reader's tables that are kept in the package are those of the grammar."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lark
import pytest

import remat_compile.ir.text
from remat_compile.ir.text import tables
from remat_compile.ir.text.parser import grammar_tables, line_tables
from remat_compile.ir.text.tables import Tables

FOLDER = Path(remat_compile.ir.text.__file__).parent


def spelled(rule: Any) -> Any:
    """All that lark reads of a rule."""
    symbols = [(s.name, s.is_term, getattr(s, "filter_out", None)) for s in rule.expansion]
    options = vars(rule.options)
    return (
        str(rule.origin.name),
        symbols,
        rule.alias,
        rule.order,
        {**options, "empty_indices": tuple(options["empty_indices"])},
    )


def actions_of(actions: Any) -> Any:
    """What a state does at each token, but for the numbers of the states it leads to."""
    return {
        token: ("shift", None) if str(action) == "Shift" else ("reduce", to)
        for token, (action, to) in actions.items()
    }


def terminals(reader: Any) -> Any:
    return {
        (t.name, type(t.pattern), t.pattern.value, *sorted(t.pattern.flags), t.priority)
        for t in reader.terminals
    }, set(reader.lexer_conf.ignore)


@pytest.mark.parametrize("of", [grammar_tables, line_tables])
def test_they_are_those_of_the_grammar(
    of: Callable[[], Tables], request: pytest.FixtureRequest
) -> None:
    """Both read by the same states, however these are numbered, and by the same rules."""
    mine = of()
    if request.config.getoption("--update-golden"):
        (FOLDER / mine.name).write_bytes(mine.packed())
    if not zlib.decompress((FOLDER / mine.name).read_bytes()).startswith(
        f"lark {lark.__version__},".encode()
    ):
        pytest.skip("written with another version of lark, so they are made anew here")
    made, kept = mine.made(), mine.kept()
    assert kept is not None, f"{mine.name} is of another grammar: pytest --update-golden writes it"
    assert terminals(made) == terminals(kept)
    assert list(map(spelled, made.rules)) == list(map(spelled, kept.rules))
    ours, theirs = made.parser.parser._parse_table, kept.parser.parser._parse_table
    assert len(ours.states) == len(theirs.states)
    number = {ours.start_states[s]: theirs.start_states[s] for s in mine.start}
    todo = list(number)
    while todo:
        state = todo.pop()
        one, other = ours.states[state], theirs.states[number[state]]
        assert actions_of(one) == actions_of(other)
        for token, (action, to) in one.items():
            if str(action) == "Shift":
                if to not in number:
                    todo.append(to)
                assert number.setdefault(to, other[token][1]) == other[token][1]
    assert len(number) == len(set(number.values())) == len(ours.states)
    assert {s: number[ours.end_states[s]] for s in mine.start} == theirs.end_states


def test_other_tables_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Tables("x.tables", 'start: "a"+', ("start",))
    assert of.kept() is None, "there is no file"
    monkeypatch.setattr(tables, "files", lambda package: tmp_path)
    (tmp_path / of.name).write_bytes(of.packed())
    kept = of.kept()
    assert kept is not None
    assert kept.parse("aaa") == of.made().parse("aaa")
    assert replace(of, grammar='start: "a"').kept() is None
    monkeypatch.setattr("lark.__version__", "99")
    assert of.kept() is None
    assert of.reader(None).parse("aaa") == kept.parse("aaa")  # type: ignore[arg-type]


def test_a_damaged_file_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package reads and writes plans all the same."""
    of = Tables("x.tables", 'start: "a"+', ("start",))
    monkeypatch.setattr(tables, "files", lambda package: tmp_path)
    whole = of.packed()
    no_line = zlib.compress(b"no second line")
    for damaged in (b"", whole[:-20], whole[:40] + b"?" + whole[41:], no_line):
        (tmp_path / of.name).write_bytes(damaged)
        assert of.kept() is None
        assert of.reader(None).parse("aaa") is not None  # type: ignore[arg-type]
