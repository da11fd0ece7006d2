"""The example plug-in, installed as a user would, and seen by this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

SOURCE = ROOT / "examples" / "my_planner"
NAME = "drop-largest"


def pip_install(python: str | Path, folder: Path, *words: str) -> None:
    """Installs a copy of the plug-in, offline; building leaves traces beside the source."""
    copy = folder / "source"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    ran = subprocess.run(
        [*command, "--no-index", "--disable-pip-version-check", *words, str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def install(folder: Path) -> Path:
    """Installs it into a folder of its own; to be put on `sys.path`."""
    target = folder / "site"
    pip_install(sys.executable, folder, "--target", str(target))
    return target


def install_module(
    folder: Path, module: str, code: str, entry: str, group: str = "planners"
) -> dict[str, str]:
    """A plug-in of one module as an installer leaves it behind, and the environment of a
    process that finds it. `entry` is its entry point: `name = module:Class`."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[remat_compile.{group}]\n{entry}\n")
    path = os.pathsep.join((str(folder), *filter(None, sys.path)))
    return {**os.environ, "PYTHONPATH": path}
