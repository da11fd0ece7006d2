"""Each file of the red team is refused, or does no harm."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.clock import HANGS_S
from helpers.redteam import BOMB, FILES, MADE, TABLE, Case, Outcome, cases
from remat_compile.cli import main
from remat_compile.plans.files import files as _files

CODE = re.compile(r"\bFB\d{4}\b")
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What may change a terminal or the order of its letters; tab and newline are neither."""

MOST_S = 60.0
"""Seconds of processor time that any command may take, a time limit of 5 s included."""


def case_params() -> list[object]:
    slow = [pytest.mark.slow]
    return [pytest.param(c, id=str(c), marks=slow if c.is_slow else []) for c in cases()]


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Where the file of the case lies with its neighbours, and where its command runs.

    Above it lie `far/away/any.py` and `ABSOLUTE/any.py`, which plans name as their source.
    """
    case: Case = request.getfixturevalue("case")
    place = tmp_path / "work" / "plans"
    place.mkdir(parents=True)
    for outside in ("work/far/away", "ABSOLUTE"):
        (tmp_path / outside).mkdir(parents=True)
        payload = 'open("PWNED_source", "w").write("x")\ndef f(): pass\n'
        (tmp_path / outside / "any.py").write_text(payload)
    path = Path(case.file)
    if path.parts[0] == "made":
        (place / path.name).write_text(MADE[path.stem](), encoding="utf-8")
    else:
        for model in (FILES / path).parent.glob("*.py"):
            shutil.copy(model, place)
        text = (FILES / path).read_text(encoding="utf-8")
        text = text.replace("/ABSOLUTE/", f"{tmp_path}/ABSOLUTE/")
        (place / path.name).write_text(text, encoding="utf-8")
    return place


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", case_params())
def test_refused_or_harmless(
    case: Case,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(_files, "_kept", {})
    monkeypatch.setattr("sys.stdin", io.StringIO())
    before = contents(tmp_path)
    began = time.process_time()
    if case.command == BOMB:
        code, out, err = in_a_process(case.words)
    else:
        code = main(case.words)
        out, err = capfd.readouterr()
    worked_s = time.process_time() - began
    after = contents(tmp_path)

    assert "Traceback" not in out + err
    assert not [path for path in after if path.name.startswith("PWNED")], "a payload ran"
    assert [path for path in before if after.get(path) != before[path]] == [], "was overwritten"
    assert CONTROLS.findall(out) == [], "raw control characters on standard output"
    assert CONTROLS.findall(err) == [], "raw control characters on standard error"
    assert code in (0, 1, 2)
    if code != 0:
        assert CODE.search(out + err), f"no code in:\n{out}{err}"
    match case.outcome:
        case Outcome.REFUSED:
            assert code != 0, f"not refused:\n{out}"
        case Outcome.DONE:
            assert code == 0, err
        case Outcome.HARMLESS:
            pass
    assert worked_s < MOST_S


def in_a_process(words: list[str]) -> tuple[int, str, str]:
    """The same in a process of its own, which can be ended."""
    command = [sys.executable, "-c", "from remat_compile.cli import main; raise SystemExit(main())"]
    try:
        ran = subprocess.run([*command, *words], capture_output=True, text=True, timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"longer than {HANGS_S:g} s")
    return ran.returncode, ran.stdout, ran.stderr


def test_every_file_has_a_case() -> None:
    files = {str(path.relative_to(FILES)) for path in FILES.rglob("*.fbir")}
    named = set(TABLE) | {case.file for case in cases()}
    assert {name for name in named if not name.startswith("made/")} == files
    assert {f"made/{name}.fbir" for name in MADE} <= named


def test_files_name_no_machine() -> None:
    for path in FILES.rglob("*"):
        if path.is_file() and path.suffix in (".fbir", ".py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"/(home|root|tmp|work|Users|opt)/", text), path
