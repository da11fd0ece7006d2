"""`remat-compile report`, `explain`, `diff`, and `--emit trace` and `dot`."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import Cli, chain_text

ROOT = Path(__file__).parents[2]
GPT = ROOT / "tests/verifier/mutants/plans/gpt.fbir"
OFFLOAD = ROOT / "spec/conformance/valid/offload.fbir"


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
