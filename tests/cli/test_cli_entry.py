"""The command itself: help, version, exit codes, streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.cli import Cli, chain_text
from helpers.clock import HANGS_S
from remat_compile import __version__
from remat_compile.cli import COMMANDS

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
