"""Every block of the guide does what the page says, one after another in one folder.

A `python` or `toml` block with a title is a file; another `python` block is executed, and what it
prints is the `text` block after it. A line of a `console` block that begins with `$` is a command,
and the lines after it what it says (`...` is anything). A `sh` block is for people.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT
from remat_compile.cli import main

DOCS = ROOT / "docs"
GUIDE = DOCS / "guide"
SLOW = {"train.md", "mixed_precision.md", "jax.md", "imports.md"}
OTHERS = {"planner_package.md"}  # tests/planners/test_writing_a_planner.py runs it
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: str) -> list[tuple[str, str, str]]:
    text = (GUIDE / page).read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert text.count("```") == 2 * len(found), f"{page} has a block without a kind"
    return found


PAGES = sorted(p.name for p in GUIDE.glob("*.md") if p.name not in OTHERS and blocks(p.name))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Holds the graph of the examples, and a `remat-compile` for the shell."""
    shutil.copy(ROOT / "examples" / "graph.fbir", tmp_path)
    program = tmp_path / "bin" / "remat-compile"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m remat_compile "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (
            getattr(sys.modules[name], "__file__", None)
            and tmp_path in Path(str(sys.modules[name].__file__)).parents
        ):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow) if p in SLOW else p for p in PAGES]
)
def test_what_the_page_says(page: str, folder: Path) -> None:
    space: dict[str, object] = {"__name__": "__main__"}
    given = blocks(page)
    for place, (kind, title, text) in enumerate(given):
        if title:
            (folder / title).write_text(text)
        elif kind == "console":
            for command, says in commands(text):
                check(command, says, ran(command))
        elif kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"{page}, block {place}", "exec", dont_inherit=True), space)
            follows = given[place + 1] if place + 1 < len(given) else ("", "", "")
            if follows[0] == "text":
                check(text, follows[2], printed.getvalue())
        else:
            assert kind in ("sh", "text"), f"{page}: nobody knows what to do with {kind}"


def commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, says = part.partition("\n")
        yield command, says


def ran(command: str) -> str:
    """What a command says; where its exit code is not 0, what went wrong and the code."""
    words = shlex.split(command)
    if words[0] == "remat-compile" and not {"|", "2>&1", ">"} & {*words}:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words[1:])
        said, wrong = out.getvalue(), err.getvalue()
    else:
        made = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        said, wrong, code = made.stdout, made.stderr, made.returncode
    return said + (f"{wrong}[exit code {code}]\n" if code else "")


def check(what: str, says: str, got: str) -> None:
    if not doctest.OutputChecker().check_output(says, got, ALIKE):
        pytest.fail(f"{what}\n\nthe page says:\n{says}\nand it is:\n{got}")
