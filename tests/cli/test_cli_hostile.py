"""A plan whose text is an attack: running and emitting it runs nothing of it.

Each of these ran its payload once (`open("PWNED")`), with and without `--require-certificate`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import Cli

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (torch.randn(3, 4),)
"""
PAYLOAD = 'open("PWNED","w").write("x")'
ENDS_DOCSTRING = json.dumps(f'x"""\n{PAYLOAD}\n_="""')
ENDS_COMMENT = json.dumps(f"x\n    {PAYLOAD}\n    #")
ENDS_LATER = json.dumps(f"x\u0085    {PAYLOAD}\x0c{PAYLOAD}")

Edit = Callable[[str], str]


def planner(text: str) -> str:
    return re.sub(r'(schedule @\S+) by "[^"]*"', lambda m: f"{m[1]} by {ENDS_DOCSTRING}", text)


def schedule(text: str) -> str:
    return re.sub(r"(schedule|proven) @plan", lambda m: f"{m[1]} @{ENDS_DOCSTRING}", text)


def graph(text: str) -> str:
    return re.sub(r"graph @\S+ \{", lambda m: f"graph @{ENDS_DOCSTRING} {{", text)


def place(text: str) -> str:
    return re.sub(r" at .*$", lambda m: f' at "net.py":1 {ENDS_COMMENT}', text, flags=re.M)


def file(text: str) -> str:
    return re.sub(r" at .*$", lambda m: f" at {ENDS_LATER}:1 {ENDS_COMMENT}", text, flags=re.M)


EDITS: dict[str, Edit] = {
    "planner": planner,
    "schedule": schedule,
    "graph": graph,
    "place": place,
    "file": file,
    "all": lambda text: planner(schedule(graph(file(text)))),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The plan of the model, which is captured once."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "net.py").write_text(MODEL)
    made = remat_compile.plan(f"{folder}/net.py:make", planner="store-all")
    made.save(folder / "plan.fbir")
    return (folder / "plan.fbir").read_text()


@pytest.fixture
def plan(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    Path("plan.fbir").write_text(text)
    return tmp_path / "plan.fbir"


def unharmed(folder: Path) -> None:
    assert not list(folder.glob("PWNED*"))


def edited(plan: Path, edit: str) -> None:
    text = EDITS[edit](plan.read_text())
    assert PAYLOAD.replace('"', '\\"') in text
    plan.write_text(text)


@pytest.mark.parametrize("edit", EDITS)
def test_run_and_emit_for_pytorch(edit: str, plan: Path, cli: Cli) -> None:
    edited(plan, edit)
    ran = cli("run", plan, "--model", "net.py:make", "--repeats", "1")
    assert ran.code == 0, ran.err
    assert "bit-equal" in ran.out
    ran = cli(plan, "--emit", "torch", "-o", "step.py")
    assert ran.code == 0, ran.err
    runs_nothing("step.py")
    unharmed(plan.parent)


@pytest.mark.parametrize("style", ["explicit", "annotated"])
def test_run_and_emit_for_jax(style: str, plan: Path, cli: Cli) -> None:
    edited(plan, "all")
    style_words = ("--jax-style", style)
    ran = cli("run", plan, "--backend", "jax", *style_words, "--model", "net.py:make")
    assert ran.code == 0, ran.err
    ran = cli(plan, "--emit", "jax", *style_words, "-o", "step.py", "--model", "net.py:make")
    assert ran.code == 0, ran.err
    runs_nothing("step.py")
    unharmed(plan.parent)


def runs_nothing(path: str) -> None:
    """The payload is text of the docstring or of a comment, and no call."""
    source = Path(path).read_text(encoding="utf-8")
    called = [n.func for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    assert not any(isinstance(f, ast.Name) and f.id == "open" for f in called)
    assert "PWNED" in source


def test_a_harmful_operator_is_refused_at_its_place(plan: Path, cli: Cli) -> None:
    text = plan.read_text()
    assert "aten.tanh.default(%" in text
    plan.write_text(text.replace("aten.tanh.default(%", "aten.tanh_.default(%"))
    line = text[: text.index("aten.tanh.default(%")].count("\n") + 1
    ran = cli(plan, "--emit", "torch", "-o", "step.py")
    assert ran.code == 1
    assert "FB0225" in ran.err
    assert f":{line}:" in ran.err
    assert not Path("step.py").exists()
