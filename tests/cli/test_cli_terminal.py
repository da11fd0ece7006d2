"""What stands in a file cannot act on the terminal that shows it."""

from __future__ import annotations

import ast
import io
import sys
import unicodedata
import warnings
from pathlib import Path

import pytest
from rich.console import Console

import remat_compile
import remat_compile.cli
from helpers.cli import Cli, chain_text
from remat_compile.cli import main
from remat_compile.cli.shared import terminal as _terminal
from remat_compile.ir.diagnostics import Diagnostic, FBError, Note, render
from remat_compile.ir.span import Span
from remat_compile.ir.terminal import printable, width
from remat_compile.ir.text.syntax import quote
from remat_compile.plans.files.files import read_text
from remat_compile.plans.messages.table import columns

HOSTILE = "\x1b]8;;http://x\x07[red]\u202e\u2066\u200b\x9b2J\r\n\x85\u2028\ue000\udc80\x00\t"
"""A link, markup, both directions, a C1 control, line ends, a lone surrogate, NUL."""


def acts(text: str) -> list[str]:
    """The characters that a terminal, a shell or a reader could take for something else."""
    harmful = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    return [c for c in text if c != "\n" and unicodedata.category(c) in harmful]


def in_a_file(text: str) -> str:
    """As a string of the language, with all that may stand there raw."""
    return quote(text.replace("\udc80", "").replace("\0", ""))


@pytest.fixture
def hostile(planned: Path) -> Path:
    """A proven plan with hostile text in every place that takes text."""
    bad = in_a_file(HOSTILE)
    text = planned.read_text()
    text = text.replace("graph @chain {", f"graph @{bad} {{")
    text = text.replace('target "cpu"', f"target {bad}")
    text = text.replace('at model.py:1 "layer0"', f"at {bad}:1 {bad}")
    text = text.replace('arg "args[0]"', f"arg {bad}").replace('param "w0"', f"param {bad}")
    lines = []
    for line in text.splitlines():
        if line.startswith("captured"):
            line = f"captured device {bad} threads 1 torch {bad} costs none\nsource {bad}"
        if line.startswith("schedule @"):
            line = f"schedule @{bad} by {bad} {{"
        if line.startswith("proven @"):
            line = f"proven @{bad} {{"
        lines.append(line)
    planned.write_text("\n".join(lines) + "\n")
    return planned


COMMANDS = {
    "show": ["show", "PLAN", "--all"],
    "verify": ["verify", "PLAN"],
    "verify as JSON": ["verify", "PLAN", "--format", "json"],
    "certificate": ["verify", "PLAN", "--require-certificate"],
    "largest": ["verify", "PLAN", "--largest", "b"],
    "unknown schedule": ["verify", "PLAN", "--schedule", HOSTILE],
    "run": ["run", "PLAN"],
    "plan": ["PLAN", "-o", "OUT"],
    "explain": ["explain", "PLAN"],
    "explain a name": ["explain", "PLAN", "%" + HOSTILE],
    "diff": ["diff", "PLAN", "PLAN"],
    "diff of schedules": ["diff", "PLAN", "PLAN", "--schedules", HOSTILE],
    "report": ["report", "PLAN", "-o", "OUT"],
    "trace": ["PLAN", "--emit", "trace", "-o", "OUT"],
    "emit": ["PLAN", "--emit", "torch", "-o", "OUT"],
    "jax": ["PLAN", "--emit", "jax", "-o", "OUT.py"],
    "sweep": ["sweep", "PLAN", "--activation-budgets", "80%", "--planners", "dtr"],
    "import": ["import-plan", "PLAN", "--from", "jax-names", "--save", HOSTILE],
    "planner": ["PLAN", "--planner", HOSTILE],
    "budget": ["PLAN", "--budget", HOSTILE],
    "device": ["PLAN", "--device", HOSTILE],
    "file": [HOSTILE + ".fbir"],
    "option": ["PLAN", "--" + HOSTILE],
    "command": [HOSTILE],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_text_act(name: str, cli: Cli, hostile: Path, tmp_path: Path) -> None:
    files = {"PLAN": str(hostile), "OUT": str(tmp_path / "o"), "OUT.py": str(tmp_path / "o.py")}
    ran = cli(*(files.get(word, word) for word in COMMANDS[name]))
    assert acts(ran.out + ran.err) == [], repr(ran.out + ran.err)
    assert "Traceback" not in ran.err
    assert "FB0722" not in ran.err, ran.err
    if name == "show":
        assert ran.code == 0, ran.err
        assert ran.out.count(r"\x1b]8;;http://x\x07[red]\u202e\u2066\u200b\x9b2J\r\n") > 4


BROKEN = {
    "a token": ("fbir 1", f"fbir {HOSTILE}"),
    "a comment": ("fbir 1", f"fbir 1 // {HOSTILE.partition(chr(13))[0]}\n?"),
    "an operator": ("toy.op.default(%x0, %w0)", f'toy.op.default(%x0, %w0, "{HOSTILE}'),
    "a storage that is not there": (
        "F0: fwd",
        'F0: fwd %nope = toy.op(%w0, "\u202e\\u001b")\nX: fwd',
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_excerpt_of_a_broken_text(name: str, cli: Cli, tmp_path: Path) -> None:
    before, after = BROKEN[name]
    text = chain_text().replace(before, after, 1)
    path = tmp_path / "broken.fbir"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for ran in (cli("verify", path), cli("verify", "-", stdin=text)):
        assert ran.code in (1, 2)
        assert "error[FB" in ran.err
        assert acts(ran.out + ran.err) == [], repr(ran.err)


@pytest.mark.parametrize(
    ("line", "start", "end", "below"),
    [
        ("ab cd", 4, 6, "   ^^"),
        ("\x1b[2Jab", 5, 7, "       ^^"),
        ("\u202eab\u202e", 4, 5, "        ^^^^^^"),
        ("層 ab", 3, 5, "   ^^"),
        ("e\u0301 ab", 4, 6, "  ^^"),
        ("\tab\r", 2, 4, "  ^^"),
        ("ab", 3, 3, "  ^"),
        ("ab", 6, 8, "     ^"),
    ],
)
def test_carets_stay_below_what_they_mean(line: str, start: int, end: int, below: str) -> None:
    shown = render(Diagnostic("FB0000", "m", Span(2, start, end, "f")), f"first\v\n{line}\n")
    _, source, caret = shown.split("\n")
    assert source == f"    2 | {printable(line.removesuffix(chr(13)))}"
    assert caret == f"      | {below}"


def test_each_field_of_a_diagnostic() -> None:
    span = Span(1, 1, 2, HOSTILE)
    diagnostic = Diagnostic("FB0000", HOSTILE, span, (Note(HOSTILE, span),), HOSTILE)
    for text in (
        render(diagnostic, HOSTILE),
        render(diagnostic, HOSTILE, "warning"),
        str(FBError(diagnostic)),
    ):
        assert acts(text) == []
    # One line each: message, excerpt and caret, note, excerpt and caret, hint.
    assert render(diagnostic, HOSTILE).count("\n") == 6
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(render(diagnostic), stacklevel=1)
    assert acts(str(caught[0].message)) == []


def test_tables_stay_aligned() -> None:
    lines = columns([("a\x1b", "1"), ("層層", "22"), ("\u202e", "3")], "<>")
    assert lines == ["a\\x1b    1", "層層    22", "\\u202e   3"]
    assert len({width(line) for line in lines}) == 1


def test_printable() -> None:
    assert printable("größe 層 × █ …") == "größe 層 × █ …"
    assert printable(HOSTILE).isascii()
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
            assert printable(chr(code)).isascii(), hex(code)


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal.progress() as say:
        say(HOSTILE)
    err = capsys.readouterr().err
    assert acts(err) == []
    assert err.count("\n") == 1
    terminal = io.StringIO()

    def console(**_: object) -> Console:
        return Console(file=terminal, force_terminal=True, width=200)

    monkeypatch.setattr("rich.console.Console", console)
    with _terminal._bar() as say:
        say(HOSTILE)
    assert r"\x1b]8;;http://x\x07[red]\u202e" in terminal.getvalue()
    assert "\x1b]8" not in terminal.getvalue()
    assert "\u202e" not in terminal.getvalue()


def test_a_text_on_a_terminal_does_not_act(
    hostile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = remat_compile.load(hostile)
    plan.save("-")
    raw = capsys.readouterr().out
    assert "\u202e" in raw  # a pipe gets the text as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    plan.save("-")
    shown = capsys.readouterr().out
    assert acts(shown) == []
    assert shown.count("\n") == raw.count("\n")


def test_the_python_api(hostile: Path) -> None:
    plan = remat_compile.load(hostile)
    swept = remat_compile.sweep(hostile, activation_budgets="80%", planners="dtr")
    for text in (plan.summary(), repr(plan), swept.table()):
        assert acts(text) == []
    with pytest.raises(FBError) as caught:
        remat_compile.load(hostile, HOSTILE)
    assert acts(str(caught.value)) == []


def test_a_mistake_of_ours_is_one_message(
    chain: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError(HOSTILE)

    monkeypatch.setattr("remat_compile.ir.text.parser.parse_program", broken)
    monkeypatch.delenv("REMAT_COMPILE_TRACEBACK", raising=False)
    assert main(["show", str(chain)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[FB0722]: remat-compile itself fails: RecursionError: \\x1b]8")
    assert acts(err) == []
    assert "Traceback" not in err
    monkeypatch.setenv("REMAT_COMPILE_TRACEBACK", "1")
    with pytest.raises(RecursionError):
        main(["show", str(chain)])


def test_streams_that_cannot_encode(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["show", str(hostile)]) == 0
    narrow.flush()
    assert b"\\u2588" in narrow.buffer.getvalue()  # the bars of the chart


def test_one_way_to_the_terminal() -> None:
    """No module of the command line writes to a stream but through `echo`."""
    folder = Path(remat_compile.cli.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(read_text(path))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                allowed = path.name == "terminal.py"
                writes = called == "print" or called.endswith((".write", "secho", "rprint"))
                assert allowed or not writes or called == "code.write", f"{path.name}: {called}"
