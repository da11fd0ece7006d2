"""What slow work says of itself: where somebody watches, and only after a moment."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import chain_text
from remat_compile.driver import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.fbir"
    path.write_text(chain_text())
    return path


def said(
    chain: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO,
    given: progress.Progress,
    after_s: float = 0.0,
) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "MOMENT_S", after_s)
    remat_compile.plan(chain, planner="store-all", progress=given)
    return stream.getvalue()


def test_a_terminal_shows_one_line_and_keeps_none(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(chain, monkeypatch, Terminal(), None)
    assert "planning with store-all" in text
    assert "\n" not in text
    assert "\x1b" not in text  # no colours, whatever NO_COLOR says
    assert text.endswith("\r")
    assert text.rstrip("\r").rpartition("\r")[2].strip() == ""


@pytest.mark.parametrize(
    ("stream", "given", "after_s", "shows"),
    [
        (io.StringIO, None, 0.0, False),
        (Terminal, None, 3600.0, False),
        (Terminal, False, 0.0, False),
        (io.StringIO, True, 3600.0, True),
    ],
)
def test_who_is_told(
    stream: type[io.StringIO],
    given: bool | None,
    after_s: float,
    shows: bool,
    chain: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bool(said(chain, monkeypatch, stream(), given, after_s)) is shows


def test_a_function_gets_every_line(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    assert said(chain, monkeypatch, Terminal(), lines.append) == ""
    assert "planning with store-all" in lines


def test_a_long_line_is_cut_and_an_error_leaves_no_trace(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = progress._Line(0.0)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    line.say("x\x1b[2J" * 200)
    assert len(terminal.getvalue()) <= progress.WIDTH + 1
    line.end()
    line.say("late")
    assert "late" not in terminal.getvalue()
