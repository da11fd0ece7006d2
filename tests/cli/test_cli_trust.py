"""What a plan of somebody else may make the command load: nothing that runs code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import Cli, chain_text
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


def recorded(plan: Path, source: str) -> None:
    """Has the plan name another source, without a hash."""
    line = f"source {quote(source)}"
    plan.write_text(re.sub(r"^source .*$", lambda _: line, plan.read_text(), flags=re.M))


LOADING: dict[str, list[str]] = {
    "run": ["run", "PLAN", "--repeats", "1"],
    "jax code": ["PLAN", "--emit", "jax", "-o", "OUT"],
}


def words_of(case: str, plan: Path) -> list[str]:
    """The command line of a case, with its files."""
    files = {"PLAN": str(plan), "OUT": str(plan.with_name("step.py"))}
    return [files.get(word, word) for word in LOADING[case]]


@pytest.mark.parametrize("case", LOADING)
def test_python_is_loaded_only_when_the_user_names_it(case: str, cli: Cli, plan: Path) -> None:
    words = words_of(case, plan)
    ran = cli(*words)
    assert (ran.code, "error[FB0718]" in ran.err) == (2, True), ran.err
    spec = f"{plan.with_name('net.py')}:make"
    assert f"give --model {spec} or --trust-source" in ran.err
    assert not loaded(plan).exists()
    for named in (["--trust-source"], ["--model", spec]):
        ran = cli(*words, *named)
        assert ran.code == 0, ran.err + ran.out
        assert loaded(plan).exists()
        loaded(plan).unlink()


def test_jax_runs_without_the_model_and_says_why(cli: Cli, plan: Path) -> None:
    ran = cli("run", plan, "--backend", "jax")
    assert ran.code == 0, ran.err
    assert "not compared, as net.py:make is not loaded because a plan says so" in ran.out
    assert not loaded(plan).exists()
    assert "largest difference" in cli("run", plan, "--backend", "jax", "--trust-source").out


@pytest.mark.parametrize("command", ["verify", "show", "plan", "emit"])
def test_other_commands_load_nothing(command: str, cli: Cli, plan: Path, tmp_path: Path) -> None:
    words: dict[str, list[object]] = {
        "verify": ["verify", plan],
        "show": ["show", plan],
        "plan": [plan, "-o", tmp_path / "again.fbir"],
        "emit": [plan, "--emit", "torch", "-o", tmp_path / "step.py"],
    }
    assert cli(*words[command]).code == 0
    assert not loaded(plan).exists()


def test_a_changed_file_is_refused_before_it_runs(cli: Cli, plan: Path, model: Path) -> None:
    model.write_text(MODEL + "# edited\n")
    for words in (["--trust-source"], ["--model", f"{model}:make"]):
        ran = cli("run", plan, *words)
        assert (ran.code, "error[FB0715]" in ran.err) == (1, True)
        assert not loaded(plan).exists()


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


def test_links_that_lead_out_of_the_folder(cli: Cli, plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "near"
    folder.mkdir()
    (folder / "plan.fbir").write_bytes(plan.read_bytes())
    (folder / "net.py").symlink_to(tmp_path / "net.py")
    ran = cli("run", folder / "plan.fbir", "--trust-source")
    assert (ran.code, "error[FB0717]" in ran.err) == (1, True), ran.err
    (folder / "net.py").unlink()
    (folder / "net.py").symlink_to("net.py")
    ran = cli("run", folder / "plan.fbir", "--trust-source")
    assert "error[FB07" in ran.err
    (folder / "net.py").unlink()
    (folder / "real.py").write_text(MODEL)
    (folder / "net.py").symlink_to("real.py")
    assert cli("run", folder / "plan.fbir", "--trust-source", "--repeats", "1").code == 0
    assert not loaded(plan).exists()


def test_the_working_folder_is_not_the_folder_of_the_plan(
    cli: Cli, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    (folder / "plan.fbir").write_bytes(plan.read_bytes())
    monkeypatch.chdir(tmp_path)
    ran = cli("run", "plans/plan.fbir", "--trust-source")
    assert (ran.code, "error[FB0709]" in ran.err) == (2, True)


def test_pt2_counts_as_code(cli: Cli, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"no matter")
    recorded(plan, "net.pt2")
    ran = cli("run", plan)
    assert (ran.code, "error[FB0718]" in ran.err) == (2, True)
    ran = cli("run", plan, "--trust-source")
    assert (ran.code, "error[FB0503]" in ran.err) == (1, True)


def test_what_is_no_model_is_not_followed(cli: Cli, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "other.fbir").write_text(chain_text())
    for name in ("other.fbir", "net.py", "plan.fbir"):
        recorded(plan, name)
        ran = cli("run", plan, "--trust-source")
        assert ran.code != 0
        assert re.search(r"error\[FB07(17|02)\]", ran.err), ran.err
        assert not loaded(plan).exists()


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
