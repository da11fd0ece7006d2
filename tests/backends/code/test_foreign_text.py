"""Text of a program in generated code: it stays text, whatever it is."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.emitted.code_plans import FORMS, PAYLOAD, executable, filled, planned, source
from remat_compile.backends.python.quote import LONGEST, comment, docstring, literal, scope
from remat_compile.ir.diagnostics import FBError

HOSTILE = (
    'x"""\n' + PAYLOAD + '\n_="""',
    f"x\n    {PAYLOAD}\n    #",
    f"x\x0c{PAYLOAD}",
    f"x\r{PAYLOAD}",
    f"x\x85{PAYLOAD}",
    f"x\u2028{PAYLOAD}",
    "x\u202e\u2066gnp.exe",
    "\\",
    '"""\\',
    "'''",
    "\\N{BULLET} \\x41 \\u0041 \\",
    "{graph} {0} {{}} {inputs.__class__} %s %(x)s",
    "\0",
    "\ud800",
    "\ufeff",
    "x" * 5000,
    "\U000e0001é中",
    "",
)
PIECES = st.sampled_from(['"', '"""', "'", "'''", "\\", "\n", "\r", "\x0c", "{", "}", "%", "#"])
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=8).map("".join)


@cache
def harmless(form: str) -> str:
    return executable(source(form, *filled("plain")))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:24])
def test_hostile_text_changes_nothing_that_runs(form: str, text: str) -> None:
    assert executable(source(form, *filled(text))) == harmless(form)


@settings(max_examples=12)
@given(TEXTS)
@example('a"""' + PAYLOAD)
def test_no_text_changes_what_runs(text: str) -> None:
    for form in FORMS:
        assert executable(source(form, *filled(text))) == harmless(form)


@pytest.mark.parametrize("form", FORMS)
def test_each_line_of_generated_code_can_be_printed(form: str) -> None:
    for text in HOSTILE:
        for line in source(form, *filled(text)).split("\n"):
            assert line.isprintable()


def test_long_text_is_cut_in_comments_and_kept_in_literals() -> None:
    text = source("jax", *filled("x" * 5000))
    assert f"# {'x' * LONGEST}…" in text
    assert repr("x" * 5000 + "0") in text
    assert len(docstring('"' * 5000)) < 2 * LONGEST + 9


@given(TEXTS | st.text())
def test_quoted_text_means_itself(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert ast.literal_eval(scope(text)) == text
    assert ast.literal_eval(f'"""{docstring(text)}."""').startswith(text[:LONGEST])
    assert len(ast.parse(f"x = 1  # {comment(text)}\ny = 2").body) == 2
    for quoted in (literal(text), scope(text), docstring(text), comment(text)):
        assert quoted.isprintable()


def test_harmless_text_reads_as_written() -> None:
    text = 'net.py:3 "encoder.layers.0" rotor{slots=500} é'
    assert comment(text) == text
    assert literal("lin.weight") == "'lin.weight'"
    assert scope("F7#2") == '"F7#2"'


UNQUOTED = {
    "torch": ["torch.code.emit.docstring", "torch.code.function.comment"],
    "jax": ["jax.emit.template.docstring", "jax.emit.body.comment", "jax.emit.body.scope"],
    "annotated": ["jax.emit.template.docstring", "jax.emit.body.comment", "jax.emit.body.scope"],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", HOSTILE[:2], ids=["docstring", "comment"])
def test_without_quotes_the_check_refuses(
    form: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second lock holds where the first is open."""
    monkeypatch.chdir(tmp_path)
    for name in UNQUOTED[form]:
        module, _, attribute = name.rpartition(".")
        monkeypatch.setattr(import_module(f"remat_compile.backends.{module}"), attribute, str)
    with pytest.raises(FBError) as caught:
        source(form, *filled(text))
    assert caught.value.diagnostics[0].code in ("FB0940", "FB0941")
    assert caught.value.diagnostics[0].span is not None
    assert not list(tmp_path.iterdir())


def test_the_plan_runs_one_operator_twice() -> None:
    program, schedule = planned()
    assert source("torch", program, schedule).count("replay(") == 2
