"""Models in Python files, and `remat-compile run`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.cli import Cli
from remat_compile.api import load
from remat_compile.cli import main
from remat_compile.plans.compare import step as compare_torch
from remat_compile.plans.compare.step import StepReport

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.BatchNorm1d(64)), (torch.randn(32, 64),)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model and plan, made once."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "net.py").write_text(MODEL)
    words = ["--activation-budget", "60%", "--planner", "dtr", "--quiet"]
    assert main([f"{folder}/net.py:make", "-o", f"{folder}/plan.fbir", *words]) == 0
    return folder


@pytest.fixture
def plan(model: Path, made: Path) -> Path:
    """The plan beside a copy of its model."""
    text = (made / "plan.fbir").read_text().replace(str(made), str(model.parent))
    path = model.with_name("plan.fbir")
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("ratio", "says"), [(2.0, "is the sum of"), (1.05, None), (0.95, None), (0.5, "faster than")]
)
def test_a_time_that_was_not_predicted_is_explained(
    cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, says: str | None
) -> None:
    compare, predicted_s = compare_torch.compare_step, load(plan).time_s

    def timed(*given: Any) -> StepReport:
        return replace(compare(*given), time_s=ratio * predicted_s)

    monkeypatch.setattr(compare_torch, "compare_step", timed)
    ran = cli("run", plan, "--repeats", "1", "--trust-source")
    assert ran.code == 0, ran.err
    for words in ("is the sum of", "faster than"):
        assert (words in ran.out) == (words == says)


def test_what_changes_from_step_to_step_is_told(
    cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = compare_torch.compare_step

    def changing(*given: Any) -> StepReport:
        return replace(compare(*given), irreproducible=2, max_difference=1e-6)

    monkeypatch.setattr(compare_torch, "compare_step", changing)
    ran = cli("run", plan, "--repeats", "1", "--trust-source")
    assert ran.code == 0
    assert "2 more change from step to step" in ran.out
    assert "1e-06 of the largest value" in ran.out


def test_profile_measured_beside_predicted(cli: Cli, plan: Path, tmp_path: Path) -> None:
    """Every computation once in each process, in one order; on the CPU to the same byte."""
    path = tmp_path / "profile.json"
    ran = cli("run", plan, "--repeats", "2", "--trust-source", "--profile", path, "-q")
    assert ran.code == 0, ran.err + ran.out
    assert f"wrote {path}" in ran.out
    events = json.loads(path.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["@plan, predicted", "@plan, measured"]
    both = [[e for e in events if e["ph"] == "X" and e["pid"] == pid] for pid in (1, 2)]
    both[0] = [e for e in both[0] if e["cat"] != "loss"]
    order = [[e["args"][k] for k in ("step", "computation", "execution")] for e in both[1]]
    assert order == [[e["args"][k] for k in ("step", "computation", "execution")] for e in both[0]]
    assert any(execution == 2 for _, _, execution in order)
    for mine, measured in zip(*both, strict=True):
        assert measured["args"]["predicted_us"] == mine["dur"]
        assert measured["args"]["device_bytes"] == mine["args"]["device_bytes"], mine["name"]
        assert measured["dur"] > 0
    ends = [e["ts"] + e["dur"] for e in both[1]]
    assert all(end <= e["ts"] + 1e-6 for end, e in zip(ends, both[1][1:], strict=False))
    assert max(e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == 2) == max(
        e["args"]["device_bytes"] for e in both[1]
    )


def test_other_model(cli: Cli, plan: Path, model: Path) -> None:
    # Same file, hence same hash; another graph.
    plan.write_text(plan.read_text().replace("net.py:make", "net.py:other"))
    model.write_text(MODEL)
    ran = cli("run", plan, "--model", f"{model}:make")
    assert ran.code == 0
    recorded = plan.read_text()
    # As long as before and of the same second: Python would take the bytecode it has.
    before = model.stat()
    model.write_text(MODEL.replace("GELU", "ReLU"))
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    from remat_compile.plans.files.files import sha256_of

    digest = recorded.partition('sha256 "')[2].partition('"')[0]
    plan.write_text(recorded.replace(digest, sha256_of(model)))
    ran = cli("run", plan, "--model", f"{model}:make")
    assert (ran.code, "error[FB0710]" in ran.err) == (1, True)
    assert "relu" in ran.err


FACTORIES = {
    "no function": ("def other(): pass", "FB0704", 2),
    "raises": ("def make():\n    raise ValueError('no weights')", "FB0705", 1),
    "exits": ("raise SystemExit", "FB0705", 1),
    "exits in make": ("import sys\ndef make():\n    sys.exit(3)", "FB0705", 1),
    "syntax": ("def make(:\n    pass", "FB0705", 1),
    "import": ("import no_such_package_at_all\ndef make(): pass", "FB0705", 1),
    "returns nothing": ("def make(): pass", "FB0706", 2),
    "returns no arguments": (
        "from torch import nn\ndef make(): return nn.Linear(2, 2)",
        "FB0706",
        2,
    ),
    "no trainable parameter": (
        "import torch\ndef make(): return torch.nn.ReLU(), (torch.ones(2),)",
        "FB0502",
        1,
    ),
}


@pytest.mark.parametrize("case", FACTORIES)
def test_factories_that_cannot_be_used(case: str, cli: Cli, tmp_path: Path) -> None:
    source, code, exit_code = FACTORIES[case]
    (tmp_path / "net.py").write_text(source)
    ran = cli(f"{tmp_path}/net.py:make", "-o", tmp_path / "p.fbir")
    assert (ran.code, f"error[{code}]" in ran.err) == (exit_code, True), ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "p.fbir").exists()


def test_factory_errors_name_the_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FACTORIES["raises"][0])
    ran = cli(f"{tmp_path}/net.py:make")
    assert "net.py:2: raise ValueError('no weights')" in ran.err


def test_pt2(cli: Cli, tmp_path: Path) -> None:

    exported = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    torch.export.save(exported, tmp_path / "net.pt2")
    ran = cli(tmp_path / "net.pt2", "-o", tmp_path / "p.fbir", "--budget", "100%")
    assert ran.code == 0, ran.err
    assert cli("run", tmp_path / "p.fbir", "--repeats", "1", "--trust-source").code == 0
    (tmp_path / "net.pt2").write_bytes(b"")
    ran = cli(tmp_path / "net.pt2", "-o", tmp_path / "q.fbir")
    assert (ran.code, "error[FB0503]" in ran.err) == (1, True)


def test_values_for_emitted_code(cli: Cli, plan: Path, model: Path, tmp_path: Path) -> None:
    code, values = tmp_path / "step.py", tmp_path / "step.pt"
    assert cli(plan, "--emit", "torch", "-o", code).code == 0
    for _ in range(2):  # the second time over the first file
        ran = cli("run", plan, "--repeats", "1", "--trust-source", "--values", values)
        assert (ran.code, f"wrote {values}" in ran.out) == (0, True), ran.err
    step = [sys.executable, str(code), str(values)]
    done = subprocess.run(step, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Six linear layers and a norm with weight and bias, the output, three buffers.
    assert "outputs and gradients: 0 wrong, 18 compared with step.pt" in done.stdout
    measured, planned = re.findall(r"(\d+) bytes measured, (\d+) planned", done.stdout)[0]
    assert int(measured) <= int(planned)
