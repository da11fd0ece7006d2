"""What a shell is told when Tab is pressed, and the options that every command has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from helpers.cli import Cli
from helpers.paths import ROOT
from remat_compile.cli import COMMANDS
from remat_compile.cli.shared import terminal as _terminal

PLAN = ROOT / "spec/conformance/valid/offload.fbir"
MODULE = [sys.executable, "-m", "remat_compile"]


def completed(*words: str) -> list[str]:
    """The answers to bash where the cursor is behind the last of `words`."""
    typed = {"COMP_WORDS": "\n".join(("remat-compile", *words)), "COMP_CWORD": str(len(words))}
    asked = {**os.environ, **typed, "_REMAT_COMPILE_COMPLETE": "complete_bash"}
    ran = subprocess.run(MODULE, env=asked, capture_output=True, text=True, check=True)
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("s",), ["show", "sweep"]),
        (("--bud",), ["--budget"]),
        (("model.onnx", "--act"), ["--activation-budget"]),
        (("verify", "--sol"), ["--solver"]),
        (("verify", "--solver", ""), ["z3", "cvc5", "both"]),
        (("model.onnx", "--planner", "rotor"), ["rotor", "rotor-floating"]),
        (("sweep", "m", "--device", "a100"), ["a100-80gb"]),
    ],
)
def test_answers(words: tuple[str, ...], answers: list[str]) -> None:
    assert [a for a in completed(*words) if a in answers] == answers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_the_shell(shell: str, cli: Cli, tmp_path: Path) -> None:
    ran = cli("completion", shell)
    assert ran.code == 0
    assert f"_REMAT_COMPILE_COMPLETE=complete_{shell}" in ran.out
    if program := shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(ran.out)
        subprocess.run([program, "-n", script], check=True)
    assert cli("completion", "csh").code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_quiet_or_verbose(name: str, cli: Cli) -> None:
    shown = cli(name, "--help").out
    for option in ("-q", "--quiet", "-v", "--verbose", "--no-config"):
        assert option in shown


def test_verbose_says_how_long(cli: Cli) -> None:
    loud, quiet = cli("show", PLAN, "--verbose"), cli("show", PLAN, "-q")
    assert loud.out == quiet.out
    assert (quiet.err, loud.err.startswith("took ")) == ("", True)


@pytest.mark.parametrize("colours", [True, False])
def test_no_color(colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is all that has colours."""
    import io

    terminal = io.StringIO()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    made = Console(file=terminal, force_terminal=True)
    monkeypatch.setattr("rich.console.Console", lambda **_: made)
    with _terminal._bar() as say:
        say("planning")
    assert ("\x1b[38;5;" in terminal.getvalue() or "\x1b[3" in terminal.getvalue()) is colours
