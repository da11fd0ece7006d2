"""Standard streams that are closed, full, gone or ASCII: one message, and no false success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.cli import chain_text
from helpers.clock import HANGS_S
from helpers.slow import default_only

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


PLAN = "chain.fbir --planner store-all --quiet"


def test_a_closed_standard_output_is_no_failure_of_the_command(chain: Path) -> None:
    code, said = shell(">&-", f"{PLAN} -o made.fbir", chain.parent)
    assert (code, said) == (0, b"")
    assert (chain.parent / "made.fbir").read_text(encoding="utf-8").startswith("fbir 1")


@pytest.mark.parametrize(
    "closed", default_only(["2>&-", ">&- 2>&-", "<&- >&- 2>&-"], ["<&- >&- 2>&-"])
)
def test_nothing_printed_lands_in_an_opened_file(closed: str, chain: Path) -> None:
    words = f"{PLAN.removesuffix(' --quiet')} -o made.fbir"
    code, _ = shell(closed, words, chain.parent)
    assert code == 0
    text = (chain.parent / "made.fbir").read_text(encoding="utf-8")
    assert text.startswith("fbir 1")
    assert "reading chain.fbir" not in text
    assert shell("", "verify made.fbir", chain.parent)[0] == 0


def test_a_text_for_a_closed_standard_output(chain: Path) -> None:
    code, said = shell(">&-", f"{PLAN} -o -", chain.parent)
    assert code == 2
    assert b"error[FB0703]: cannot write standard output: it is closed" in said


def test_a_closed_standard_input(chain: Path) -> None:
    code, said = shell("<&-", "show -", chain.parent)
    assert code == 2
    assert b"error[FB0701]: standard input is closed" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("words", ["devices", f"{PLAN} -o -", f"{PLAN} -o /dev/full"])
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
    code, text = shell("", f"{PLAN} -o {output}", chain.parent, **ascii_only)
    assert code == 0, text
    assert 'graph @"kät…"' in text.decode("utf-8")
    (chain.parent / "again.fbir").write_bytes(text)
    code, shown = shell("< again.fbir", "show -", chain.parent, **ascii_only)
    assert code == 0, shown
    assert shown.isascii()
