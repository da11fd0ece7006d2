"""What `docs/guide/planner_package.md` says is what the example holds, and it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from helpers.cli import chain_text
from helpers.planners.plugin import SOURCE

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "guide" / "planner_package.md").read_text())


def test_the_page_has_all_kinds_of_blocks() -> None:
    assert {(kind, what) for kind, what, _ in BLOCKS} == {
        ("toml", "pyproject.toml"),
        ("python", "my_planner.py"),
        ("python", "run"),
        ("sh", "run"),
    }


@pytest.mark.parametrize("what", ["pyproject.toml", "my_planner.py"])
def test_files_hold_what_the_page_shows(what: str) -> None:
    shown = [block for _, name, block in BLOCKS if name == what]
    assert shown
    text = without_spaces((SOURCE / what).read_text())
    for block in shown:
        assert without_spaces(block) in text


def without_spaces(text: str) -> str:
    """The formatter sets parts of a class flush left."""
    return "".join(text.split())


@pytest.fixture(scope="module")
def bin_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a throwaway environment that sees what this one has installed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # `addsitedir` also reads the .pth files there, as of an editable install.
    here = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(site, "outer.pth").write_text(here)
    python = folder / "bin" / "python"
    for name, module in (("pip", "pip"), ("remat-compile", "remat_compile.cli")):
        script = folder / "bin" / name
        run = "import sys; sys.argv[0] = {0!r}; from {1} import main; sys.exit(main())"
        code = run.format(name, "pip._internal.cli.main" if module == "pip" else module)
        script.write_text(
            f"#!/bin/sh\nexec {python} -c '{code.replace(chr(39), chr(34))}' \"$@\"\n"
        )
        script.chmod(0o755)
    return folder / "bin"


@pytest.mark.slow
def test_the_page_runs(bin_of: Path, tmp_path: Path) -> None:
    graph = ROOT / "examples" / "graph.fbir"
    assert graph.read_text() == chain_text()
    (tmp_path / "graph.fbir").write_text(graph.read_text())
    copy = tmp_path / "my_planner"
    copy.mkdir()
    for name in ("my_planner.py", "pyproject.toml"):
        (copy / name).write_text((SOURCE / name).read_text())
    path = {"PATH": f"{bin_of}{os.pathsep}{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
    for kind, what, block in BLOCKS:
        if what != "run":
            continue
        words = [sys.executable, "-c"] if kind == "python" else ["sh", "-exc"]
        ran = subprocess.run(
            [*words, block],
            cwd=tmp_path,
            env={**os.environ, **path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        if kind == "sh":
            assert "drop-largest{time_power=1.0}" in ran.stdout
            assert "plan @plan by drop-largest{time_power=0.5}" in ran.stdout
    assert "drop-largest" in (tmp_path / "sweep.csv").read_text()
