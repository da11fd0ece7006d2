"""Progress in Python: shown by itself where work is slow and somebody looks, and never else."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import remat_compile
from helpers.cli import chain_text
from helpers.clock import HANGS_S
from remat_compile import FBError
from remat_compile.plans.messages import progress
from remat_compile.plans.messages.progress import shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class AtOnce:
    """A timer that needs no thread: it is due when it starts, or never."""

    def __init__(self, interval: float, function: Callable[[], None]):
        self.due = function if interval == 0 else None

    def start(self) -> None:
        if self.due is not None:
            self.due()

    def cancel(self) -> None:
        pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "chain.fbir").write_text(chain_text())
    return tmp_path / "chain.fbir"


def looked_at(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error is a terminal, and all work counts as slow. To be called in the test itself,
    before which pytest sets standard error again."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    return stream


def planned(path: Path, **options: bool | Callable[[str], None] | None) -> None:
    remat_compile.plan(path, planner="dtr", activation_budget="70%", **options)  # type: ignore[arg-type]


def test_slow_work_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    with shown(None) as say:
        assert say is not None
        say("proving \x1b[31mthe plan[/]")
        until = time.monotonic() + HANGS_S
        while "proving \\x1b[31mthe plan[/]" not in terminal.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)
    before = len(terminal.getvalue())
    say("too late")
    assert len(terminal.getvalue()) == before


def test_plans_show_it_and_quick_work_does_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = looked_at(monkeypatch)
    monkeypatch.setattr(threading, "Timer", AtOnce)
    planned(path)
    assert "bounding the time of any plan" in terminal.getvalue()  # what is said last
    monkeypatch.setattr(progress, "SLOW_S", 60.0)
    before = len(terminal.getvalue())
    planned(path)
    assert len(terminal.getvalue()) == before


def test_nothing_is_shown_where_it_is_not_wanted_or_nobody_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = looked_at(monkeypatch)
    planned(path, progress=False)
    assert terminal.getvalue() == ""
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    planned(path)
    assert log.getvalue() == ""
    planned(path, progress=True)
    assert "planning with dtr\n" in log.getvalue()
    lines: list[str] = []
    planned(path, progress=lines.append)
    assert "planning with dtr" in lines


def test_another_display_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(monkeypatch)
    monkeypatch.setattr(threading, "Timer", AtOnce)
    from rich.console import Console

    with Console(stderr=True).status("of the user"), shown(None) as say:
        assert say is not None
        say("ours")


@pytest.mark.parametrize("wrong", ["yes", 1, []])
def test_what_is_no_progress(path: Path, wrong: object) -> None:
    with pytest.raises(FBError, match="give a function") as error:
        remat_compile.plan(path, progress=wrong)  # type: ignore[arg-type]
    assert [d.code for d in error.value.diagnostics] == ["FB0707"]


DRAWS = """
import random, sys
import torch
import remat_compile

random.seed(0)
before = random.getstate()
remat_compile.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), activation_budget="100%")
assert random.getstate() == before
assert "rich" in sys.modules
"""


def test_the_first_compile_of_a_process_leaves_pythons_generator(tmp_path: Path) -> None:
    """`rich` draws from it when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", DRAWS],
        env={**os.environ, "REMAT_COMPILE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_who_wants_no_progress_has_none_of_plans_for_other_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(2, 2)
    ours = remat_compile.compile(
        model, (torch.ones(1, 2),), activation_budget="100%", on_new_shape="replan", progress=False
    )
    terminal = looked_at(monkeypatch)
    ours(torch.ones(3, 2))
    assert terminal.getvalue() == ""
