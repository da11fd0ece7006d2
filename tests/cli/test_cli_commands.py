"""Commands whose answer is more than a transcript."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import remat_compile
from helpers.cli import Cli, chain_text
from remat_compile.api import load
from remat_compile.backends.torch.kernels import missing
from remat_compile.cli.show import curve
from remat_compile.verifier import ProvenPlan


def test_plans_proves_and_writes(cli: Cli, chain: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.fbir"
    ran = cli(chain, "-o", plan, "--activation-budget", "70%", "--time-limit", "5")
    assert ran.code == 0, ran.err
    assert "activations" in ran.out
    assert f"wrote {plan}" in ran.out
    assert "planning with auto" in ran.err
    made = load(plan)
    assert isinstance(made.verify(), ProvenPlan)
    assert made.proven is not None
    assert made.activation_peak_bytes <= 0.7 * made.baseline.activation_peak_bytes
    assert made.proven.activation_bytes <= 0.7 * made.baseline.activation_peak_bytes


def test_unreachable_budget_says_what_is_possible(cli: Cli, chain: Path, tmp_path: Path) -> None:
    ran = cli(chain, "-o", tmp_path / "p.fbir", "--activation-budget", "10B")
    assert ran.code == 1
    assert "the least it found is" in ran.err
    assert "no plan of any planner needs less than" in ran.err
    assert "(toy.op.default) works on %x" in ran.err
    # The hint is a command that works.
    words = ran.err.partition("give --activation-budget ")[2].split()
    assert cli(chain, "-o", tmp_path / "p.fbir", "--activation-budget", words[0]).code == 0


def test_curve_keeps_the_peak() -> None:
    lines = curve([1, 2, 1000, 2, 1] * 100, width=10, height=4)
    assert len(lines) == 5
    assert all(line.count("█") == 10 for line in lines[:4])
    assert curve([0, 0])[-1].endswith("+--")


def test_plan_that_breaks_its_own_bound(cli: Cli, planned: Path) -> None:
    # Without its frees of one activation the plan is still in order, but too large.
    lines = planned.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("schedule"))
    end = next(i for i, line in enumerate(lines) if i > start and line == "}")
    frees = [i for i in range(start, end) if lines[i].strip().startswith("free ")]
    moved = [lines[i] for i in frees]
    kept = [line for i, line in enumerate(lines) if i not in frees]
    kept[end - len(frees) : end - len(frees)] = dict.fromkeys(moved)
    planned.write_text("\n".join(kept) + "\n")
    ran = cli("verify", planned)
    assert ran.code == 1


def test_every_verdict_ends_with_what_it_assumes(cli: Cli, planned: Path) -> None:
    ran = cli("verify", planned)
    head, _, assumed = ran.out.partition("assuming:\n")
    assert head
    assert assumed.splitlines()[0] == "  for the graph as written: model not seen"
    facts = json.loads(cli("verify", planned, "--format", "json").out)
    keys = [a["key"] for a in facts["assuming"]]
    assert keys[:2] == ["graph", "operators"]
    assert [a["text"] for a in facts["assuming"]] == [line.strip() for line in assumed.splitlines()]
    listed = ", ".join(f'"{key}"' for key in keys)
    assert f"    assuming {listed}\n" in planned.read_text()
    accepted = json.loads(cli("verify", planned, "--require-certificate", "--format", "json").out)
    assert accepted["assuming"] == facts["assuming"]


def test_a_plan_is_made_for_the_memory_of_its_target(cli: Cli, planned: Path) -> None:
    text = planned.read_text()
    peak = next(int(s.split()[2]) for s in text.splitlines() if s.startswith("  device <= "))
    start = text.index("target ")
    line = text[start : text.index("\n", start)]
    graph = text[: text.index("\nschedule ")]
    tight = planned.with_name("tight.fbir")
    tight.write_text(graph.replace(line, f'target "tiny" {{ memory {peak} granularity 1 }}') + "\n")
    ran = cli(tight, "-o", planned.with_name("made.fbir"))
    assert ran.code == 0, ran.err
    assert "assuming:" in ran.out
    assert cli("verify", planned.with_name("made.fbir")).code == 0
    none = planned.with_name("none.fbir")
    none.write_text(text.replace(line, 'target "tiny" { memory 8 granularity 1 }'))
    ran = cli("verify", none)
    assert (ran.code, "error[FB0826]" in ran.err) == (1, True)
    ran = cli(none, "--planner", "store-all", "--activation-budget", "100%")
    assert ran.code == 1
    assert "has 8" in ran.err


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compile.report.document.vega", lambda: "/* vega */")


def test_plans_write_their_report(planned: Path, tmp_path: Path) -> None:
    plan = remat_compile.load(planned)
    assert plan.report(tmp_path / "r.html") == (tmp_path / "r.html").read_text()
    with pytest.raises(remat_compile.FBError, match="FB0703"):
        plan.report(planned)
    assert "this plan" in plan._repr_html_()


def test_explain_says_what_a_plan_lacks(cli: Cli, tmp_path: Path) -> None:
    """No schedule and no times; a name of 10 000 letters is cut."""
    path = tmp_path / "bare.fbir"
    text = re.sub(r" time \d+us", "", chain_text())
    path.write_text(re.sub(r"%x3\b", f"%{'N' * 10_000}", text))
    for words in ([], ["--price"], ["--budget", "1KiB"], [f"%{'N' * 10_000}"]):
        ran = cli("explain", path, *words)
        assert ran.code == 0, ran.err
        assert "the file holds no schedule" in ran.out
        assert "the plan holds no times" in ran.out
        if not words or words[0].startswith("--"):
            assert "N" * 200 not in ran.out
    assert "without times, bytes have no price" in cli("explain", path, "--price").out


@pytest.mark.slow
def test_pages_of_many_steps_take_three_seconds(tmp_path: Path) -> None:
    """Of the processor; as many computations as GPT-2 with 12 layers has."""
    (tmp_path / "chain.fbir").write_text(chain_text(layers=125))
    call = [sys.executable, "-m", "remat_compile"]
    made = ["--activation-budget", "50%", "--planner", "periodic", "-q", "-o", "plan.fbir"]
    subprocess.run([*call, "chain.fbir", *made], cwd=tmp_path, check=True)
    for words in (["report", "plan.fbir", "-o", "r.html"], ["explain", "plan.fbir"]):
        subprocess.run([*call, *words], cwd=tmp_path, check=True, capture_output=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*call, *words], cwd=tmp_path, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        assert took_s < 3, words


MODEL = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh(h) * torch.sigmoid(h) * 1.5 + h)

def make():
    torch.manual_seed(0)
    return Gated(), (torch.randn(512, 16),)
"""


@pytest.mark.slow
@pytest.mark.skipif(missing(torch.device("cpu")) is not None, reason="no C++ compiler")
def test_a_fused_plan_runs(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    plan, model = tmp_path / "plan.fbir", f"{tmp_path / 'net.py'}:make"
    ran = cli(model, "-o", plan, "--planner", "dtr", "--fuse", "inductor")
    assert ran.code == 0, ran.err
    assert "warning[FB0470]" in ran.err
    assert "bits may differ by rounding inside" in ran.out
    ran = cli("run", plan, "--model", model, "--repeats", "1")
    assert ran.code == 0, ran.err + ran.out
    assert "fused cNodes may differ by rounding" in ran.out or "bit-equal" in ran.out
    ran = cli("verify", plan, "--model", model)
    assert ran.code == 0
    assert "each the composition of the model's calls" in ran.out
