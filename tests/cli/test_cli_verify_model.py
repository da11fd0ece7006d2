"""`verify --model`: the graph of a plan is held against the model, or nothing is said of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import Cli
from remat_compile import FBError
from remat_compile.plans.compare.graph import GraphCheck, GraphSeen

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 8), nn.BatchNorm1d(8)]
    return nn.Sequential(*layers), (torch.randn(4, 8),)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The model's file, and the text of its plan."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "net.py").write_text(MODEL)
    spec = f"{folder}/net.py:make"
    remat_compile.plan(spec, planner="store-all").save(folder / "plan.fbir")
    return spec, (folder / "plan.fbir").read_text()


@pytest.fixture
def plan(made: tuple[str, str], tmp_path: Path) -> Path:
    path = tmp_path / "plan.fbir"
    path.write_text(made[1])
    return path


def edit(plan: Path, *pairs: tuple[str, str]) -> None:
    """The plan with its text changed, and what is recorded as proven of it removed."""
    text = plan.read_text()
    text = text[: text.index("\nproven")]
    for pattern, new in pairs:
        text, count = re.subn(pattern, new, text, flags=re.M)
        assert count, pattern
    plan.write_text(text + "\n")


def test_without_a_model_the_verdict_says_so(cli: Cli, plan: Path) -> None:
    line = "for the graph as written: model not seen"
    for words in ([], ["--require-certificate"]):
        assert f"\n  {line}\n" in cli("verify", plan, *words).out
    assert json.loads(cli("verify", plan, "--format", "json").out)["graph"] == line


def test_the_same_text(cli: Cli, plan: Path, made: tuple[str, str]) -> None:
    line = f"graph compared with model {made[0]}: same text"
    for words in ([], ["--require-certificate"]):
        ran = cli("verify", plan, "--model", made[0], *words)
        assert (ran.code, f"\n  {line}\n" in ran.out) == (0, True), ran.err + ran.out
    assert (
        json.loads(cli("verify", plan, "--model", made[0], "--format", "json").out)["graph"] == line
    )


def test_times_and_workspaces_do_not_count(cli: Cli, plan: Path, made: tuple[str, str]) -> None:
    edit(plan, (r" time \S+", " time 1us"), (r" workspace \d+", " workspace 4096"))
    ran = cli("verify", plan, "--model", made[0])
    assert (ran.code, "same text" in ran.out) == (0, True), ran.err


def test_renamed_nodes_are_executed(cli: Cli, plan: Path, made: tuple[str, str]) -> None:
    edit(plan, (r"%tanh\b", "%other"), (r"\bB(\d)", r"Back\1"))
    ran = cli("verify", plan, "--model", made[0])
    assert ran.code == 0, ran.err
    assert "executed at two inputs, in float64:" in ran.out
    assert "tensors bit-equal" in ran.out


OTHER_GRAPHS = {
    "another operator": (r"aten\.tanh\.default", "aten.sigmoid.default"),
    "arguments exchanged": (
        r"aten\.tanh_backward\.default\((%\w+), (%\w+)\)",
        r"aten.tanh_backward.default(\2, \1)",
    ),
    "another number": (r"native_dropout\.default\((%\w+), 0\.1", r"native_dropout.default(\1, 0.2"),
}


@pytest.mark.parametrize("case", OTHER_GRAPHS)
def test_another_graph_is_refused_on_its_text(
    case: str, cli: Cli, plan: Path, made: tuple[str, str]
) -> None:
    pattern, new = OTHER_GRAPHS[case]
    edit(plan, (pattern, new))
    lines = plan.read_text().split("\n")
    first = next(i for i, line in enumerate(made[1].split("\n"), 1) if re.search(pattern, line))
    assert cli("verify", plan).code == 0  # a plan of another graph can be proven
    ran = cli("verify", plan, "--model", made[0])
    assert ran.code == 1, ran.out
    assert f"{plan}:{first}:" in ran.err
    assert "error[FB0720]: the graph is not that of" in ran.err
    assert lines[first - 1].strip() in ran.err
    assert "of its largest value, in float64" in ran.err
    answer = json.loads(cli("verify", plan, "--model", made[0], "--format", "json").out)
    assert answer["verdict"] == "refused"
    assert [d["code"] for d in answer["diagnostics"]] == ["FB0720"]


def test_sizes(cli: Cli, plan: Path, made: tuple[str, str]) -> None:
    edit(plan, (r"(%tanh : act .* bytes) \d+", r"\1 4096"))
    ran = cli("verify", plan, "--model", made[0])
    assert (ran.code, "executed at two inputs" in ran.out) == (0, True), ran.err
    plan.write_text(re.sub(r"(%tanh : act .* bytes) \d+", r"\1 64", plan.read_text()))
    ran = cli("verify", plan, "--model", made[0])
    assert ran.code == 1
    # Another check may refuse it already as it stands: fewer bytes than its shape needs.
    if "FB0720" in ran.err:
        assert "%tanh is declared 64 bytes, and the model needs 128" in ran.err


def test_another_model_cannot_be_compared(cli: Cli, plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(MODEL.replace("nn.BatchNorm1d(8)", "nn.Linear(8, 8)"))
    ran = cli("verify", plan, "--model", f"{other}:make")
    assert (ran.code, "error[FB0721]" in ran.err) == (1, True), ran.err
    other.write_text(MODEL.replace("torch.randn(4, 8)", "torch.randn(6, 8)"))
    ran = cli("verify", plan, "--model", f"{other}:make")
    assert (ran.code, "error[FB0721]" in ran.err) == (1, True), ran.err


def test_python_api(plan: Path, made: tuple[str, str]) -> None:
    loaded = remat_compile.load(plan)
    checked = loaded.check_model(made[0])
    assert checked == GraphCheck(GraphSeen.SAME_TEXT, made[0])
    with pytest.raises(FBError) as caught:
        loaded.check_model()
    assert caught.value.diagnostics[0].code == "FB0709"
    edit(plan, (r"aten\.tanh\.default", "aten.sigmoid.default"))
    with pytest.raises(FBError) as caught:
        remat_compile.load(plan).check_model(made[0])
    assert [d.code for d in caught.value.diagnostics] == ["FB0720"]
