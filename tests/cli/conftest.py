"""A text to plan, and the command line run in this process."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from helpers.cli import Cli, Ran, chain_text
from remat_compile.cli import main
from remat_compile.plans.files import files as _files


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A chain of eight layers with nothing planned yet."""
    path = tmp_path / "chain.fbir"
    path.write_text(chain_text())
    return path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("verify", path, stdin="...")` runs the command line."""

    def run(*words: object, stdin: str = "") -> Ran:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        monkeypatch.setattr(_files, "_kept", {})
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def planned(chain: Path, plan_text: str) -> Path:
    """A proven plan of the chain at half of its activation memory."""
    path = chain.with_name("plan.fbir")
    path.write_text(plan_text)
    return path


@pytest.fixture(scope="session")
def plan_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command line writes, once for all tests."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "chain.fbir").write_text(chain_text())
    words = ["-o", f"{folder}/plan.fbir", "--activation-budget", "70%", "--planner", "dtr"]
    assert main([f"{folder}/chain.fbir", *words, "--quiet"]) == 0
    return (folder / "plan.fbir").read_text()
