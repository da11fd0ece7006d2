"""The command itself: help, version, exit codes, streams."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from helpers.cli import Cli, chain_text
from helpers.clock import HANGS_S
from helpers.paths import ROOT
from helpers.slow import default_only
from remat_compile import __version__
from remat_compile.cli import COMMANDS
from remat_compile.cli.shared import terminal as _terminal

COMMAND = [sys.executable, "-c", "import sys; from remat_compile.cli import main; sys.exit(main())"]


def test_help_lists_options_and_commands(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    for part in ("--budget", "--activation-budget", "--planner", *COMMANDS):
        assert part in ran.out


def test_nothing_at_all_is_wrong_usage(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 2
    assert "Usage: remat-compile" in ran.out


def test_version(cli: Cli) -> None:
    ran = cli("--version")
    assert (ran.code, ran.out) == (0, f"remat-compile {__version__}\n")


def test_reader_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "chain.fbir").write_text(chain_text(layers=200))
    piped = subprocess.Popen(
        [*COMMAND, "chain.fbir", "-o", "-", "-q", "--planner", "store-all"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert piped.stdout is not None
    assert piped.stderr is not None
    piped.stdout.close()
    assert "Traceback" not in piped.stderr.read()
    assert piped.wait(timeout=HANGS_S) == 1


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from remat_compile.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    [["--emit", "torch", "-o", "x.py"], ["run", "--model", "net.py:make"]],
    ids=["emit", "run"],
)
def test_a_missing_package_names_its_extra(words: list[str], planned: Path) -> None:
    (planned.parent / "net.py").write_text("def make(): ...")
    at = 1 if words[0] == "run" else 0
    line = [*words[:at], planned.name, *words[at:]]
    command = [sys.executable, "-c", WITHOUT, *line]
    ran = subprocess.run(command, cwd=planned.parent, capture_output=True, text=True, check=False)
    assert (ran.returncode, "error[FB0712]: this needs torch" in ran.stderr) == (1, True), (
        ran.stderr
    )
    assert 'help: pip install "remat-compile[torch]"' in ran.stderr
    assert not (planned.parent / "x.py").exists()


# -- What a shell is told when Tab is pressed, and the options that every command has --------------


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


# -- Standard streams that are closed, full, gone or ASCII -----------------------------------------


MAIN = "from remat_compile.cli import main; raise SystemExit(main())"


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.fbir"
    path.write_text(chain_text().replace("graph @chain", 'graph @"kät…"'), encoding="utf-8")
    return path


def shell(redirected: str, words: str, folder: Path, **environment: str) -> tuple[int, bytes]:
    """The exit code, and what a pipe and standard error were given."""
    command = f"{sys.executable} -c '{MAIN}' {words} {redirected}"
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=HANGS_S,
    )
    return ran.returncode, ran.stdout + ran.stderr


STREAMED = "chain.fbir --planner store-all --quiet"


def test_a_closed_standard_output_is_no_failure_of_the_command(chain: Path) -> None:
    code, said = shell(">&-", f"{STREAMED} -o made.fbir", chain.parent)
    assert (code, said) == (0, b"")
    assert (chain.parent / "made.fbir").read_text(encoding="utf-8").startswith("fbir 1")


@pytest.mark.parametrize(
    "closed", default_only(["2>&-", ">&- 2>&-", "<&- >&- 2>&-"], ["<&- >&- 2>&-"])
)
def test_nothing_printed_lands_in_an_opened_file(closed: str, chain: Path) -> None:
    words = f"{STREAMED.removesuffix(' --quiet')} -o made.fbir"
    code, _ = shell(closed, words, chain.parent)
    assert code == 0
    text = (chain.parent / "made.fbir").read_text(encoding="utf-8")
    assert text.startswith("fbir 1")
    assert "reading chain.fbir" not in text
    assert shell("", "verify made.fbir", chain.parent)[0] == 0


def test_a_text_for_a_closed_standard_output(chain: Path) -> None:
    code, said = shell(">&-", f"{STREAMED} -o -", chain.parent)
    assert code == 2
    assert b"error[FB0703]: cannot write standard output: it is closed" in said


def test_a_closed_standard_input(chain: Path) -> None:
    code, said = shell("<&-", "show -", chain.parent)
    assert code == 2
    assert b"error[FB0701]: standard input is closed" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", ["devices", f"{STREAMED} -o -", f"{STREAMED} -o /dev/full"])
def test_a_full_disk(words: str, chain: Path) -> None:
    code, said = shell(">/dev/full", words, chain.parent)
    assert code == 2
    assert said.count(b"error[FB0703]") == 1
    assert b"No space left on device" in said
    assert b"Exception ignored" not in said


def test_a_refusal_that_nobody_reads_is_no_success(chain: Path) -> None:
    # Without schedules, `show` refuses. `sleep` ends long before that is said.
    gone = "2>&1 | sleep 0; exit ${PIPESTATUS[0]}"
    assert shell(gone, "show chain.fbir", chain.parent)[0] == 1
    assert shell(gone, "planners", chain.parent)[0] == 1


@pytest.mark.parametrize("output", default_only(["-", "/dev/stdout"], ["/dev/stdout"]))
def test_texts_are_utf_8_in_every_locale(output: str, chain: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    code, text = shell("", f"{STREAMED} -o {output}", chain.parent, **ascii_only)
    assert code == 0, text
    assert 'graph @"kät…"' in text.decode("utf-8")
    (chain.parent / "again.fbir").write_bytes(text)
    code, shown = shell("< again.fbir", "show -", chain.parent, **ascii_only)
    assert code == 0, shown
    assert shown.isascii()
