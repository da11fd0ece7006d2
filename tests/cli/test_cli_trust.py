"""What a plan of somebody else may make the command load: nothing that runs code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import Cli
from remat_compile import FBError
from remat_compile.ir.text.syntax import quote
from remat_compile.plans.files.recorded import is_bare_name

MODEL = """
import pathlib, torch
from torch import nn
pathlib.Path(__file__).with_name("LOADED").touch()

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (torch.ones(2, 8),)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The plan of the model, which is captured once."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "net.py").write_text(MODEL)
    made = remat_compile.plan(f"{folder}/net.py:make", planner="store-all")
    made.save(folder / "plan.fbir")
    return (folder / "plan.fbir").read_text()


@pytest.fixture
def plan(model: Path, text: str) -> Path:
    path = model.with_name("plan.fbir")
    path.write_text(text)
    return path


def loaded(plan: Path) -> Path:
    return plan.with_name("LOADED")


ELSEWHERE = [
    "{far}/net.py:make",
    "../far/net.py:make",
    "./net.py:make",
    "sub/../net.py:make",
    "..\\far\\net.py:make",
    "C:\\far\\net.py:make",
    "C:net.py:make",
    "~/net.py:make",
    "~net.py:make",
    "file:net.onnx",
    "https://example.org/net.onnx",
    "net\x1b[2J.onnx",
    "..",
    "",
    "-",
]


def test_names_that_lead_elsewhere(cli: Cli, planned: Path, tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    for folder in (far, near, near / "sub"):
        folder.mkdir()
        (folder / "net.py").write_text(MODEL)
    plan = planned.rename(near / "plan.fbir")
    plain = plan.read_text().replace("target", 'source "?"\ntarget', 1)
    for source in ELSEWHERE:
        quoted = quote(source.format(far=far))
        for digest in ("", f' sha256 "{"0" * 64}"'):
            plan.write_text(plain.replace('"?"', quoted + digest))
            for words in (["--trust-source"], []):
                ran = cli("run", plan, *words)
                assert (ran.code, "error[FB0717]" in ran.err) == (1, True), (source, ran.err)
                assert "give --model MODEL" in ran.err
                assert "\x1b" not in ran.err
    assert list(tmp_path.rglob("LOADED")) == []


def test_python_api(plan: Path, model: Path) -> None:
    bare = remat_compile.load(plan)
    with pytest.raises(FBError) as caught:
        bare.bind()
    assert [d.code for d in caught.value.diagnostics] == ["FB0709"]
    assert not loaded(plan).exists()
    assert remat_compile.load(plan, trust_source=True).bind() is not None
    assert remat_compile.load(plan, model=f"{model}:make").bind() is not None
    loaded(plan).unlink()
    model.write_text(MODEL + "# edited\n")
    for keywords in ({"trust_source": True}, {"model": f"{model}:make"}):
        with pytest.raises(FBError) as caught:
            remat_compile.load(plan, **keywords)  # type: ignore[arg-type]
        assert [d.code for d in caught.value.diagnostics] == ["FB0715"]
    assert not loaded(plan).exists()


def test_the_planner_named_in_a_file_is_not_looked_up(
    cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "evil_planner-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: evil-planner\nVersion: 1\n")
    entry = "[remat_compile.planners]\nevil = evil_planner:Evil\n"
    (package / "entry_points.txt").write_text(entry)
    (tmp_path / "evil_planner.py").write_text("raise SystemExit('loaded')\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan.write_text(plan.read_text().replace('by "store-all"', 'by "evil{x=1}"'))
    other = ["--planner", "store-all"]  # auto asks every planner that is installed
    for words in (
        ["verify", plan],
        ["show", plan],
        [plan, *other],
        ["run", plan, "--trust-source"],
    ):
        assert cli(*words).code == 0
    assert "evil_planner" not in sys.modules


def test_bare_names() -> None:
    for name in ("net.py", "a b.onnx", "größe.onnx", "..net.py", "x~.py"):
        assert is_bare_name(name), name
    for name in ("a/b", "a\\b", "a:b", "~x", "-x", "..", ".", "", " ", "a\n", "a\u202eb"):
        assert not is_bare_name(name), name
