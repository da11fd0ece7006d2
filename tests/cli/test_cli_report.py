"""`remat-compile report`, `explain`, `diff`, and `--emit trace` and `dot`."""

from __future__ import annotations

import json
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


def test_a_report_is_written(cli: Cli, planned: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    ran = cli("report", planned, "-o", page)
    assert (ran.code, ran.out) == (0, f"wrote {page}\n"), ran.err
    assert str(remat_compile.load(planned).peak_bytes) in page.read_text()
    assert cli("report", planned, "-o", page).code == 0  # its own page may be replaced
    ran = cli("report", planned, "-o", "-")
    assert ran.out == page.read_text()


def test_a_report_lands_on_nothing_else(cli: Cli, planned: Path, tmp_path: Path) -> None:
    before = planned.read_bytes()
    ran = cli("report", planned, "-o", planned)
    assert (ran.code, planned.read_bytes()) == (2, before)
    assert "error[FB0703]" in ran.err
    other = tmp_path / "site.html"
    other.write_text("<!doctype html><p>mine")
    ran = cli("report", planned, "-o", other)
    assert (ran.code, other.read_text()) == (2, "<!doctype html><p>mine")
    assert "error[FB0719]" in ran.err


def test_a_text_without_a_schedule_is_shown(cli: Cli, chain: Path, tmp_path: Path) -> None:
    assert cli("report", chain, "-o", tmp_path / "r.html").code == 0
    assert "The file holds no schedule" in (tmp_path / "r.html").read_text()
    assert "FB0708" in cli("report", chain, "-o", tmp_path / "s.html", "--schedule", "p").err
    assert not (tmp_path / "s.html").exists()


def test_an_invalid_plan_makes_no_report(cli: Cli, planned: Path, tmp_path: Path) -> None:
    head, _, tail = planned.read_text().partition("schedule @")
    planned.write_text(head + "schedule @" + tail.replace("  F0\n", "", 1))
    ran = cli("report", planned, "-o", tmp_path / "r.html")
    assert (ran.code, "error[FB0301]" in ran.err) == (1, True)
    assert not (tmp_path / "r.html").exists()


def test_plans_write_their_report(planned: Path, tmp_path: Path) -> None:
    plan = remat_compile.load(planned)
    assert plan.report(tmp_path / "r.html") == (tmp_path / "r.html").read_text()
    with pytest.raises(remat_compile.FBError, match="FB0703"):
        plan.report(planned)
    assert "this plan" in plan._repr_html_()


def test_diff(cli: Cli) -> None:
    ran = cli("diff", GPT, GPT, "--schedules", "segments,least")
    assert ran.code == 1, ran.err
    for part in ("peak", "kept on the device over the loss", "runs again", "F23", "(--all)"):
        assert part in ran.out
    again = cli("diff", GPT, GPT)
    assert (again.code, again.out) == (0, "the plans are the same\n")
    assert cli("diff", GPT, GPT, "--schedules", "segments,least", "-q").out == ""


def test_diff_of_copies_and_of_other_graphs(cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "kept.fbir"
    assert cli(OFFLOAD, "-o", kept, "--planner", "store-all").code == 0
    ran = cli("diff", kept, OFFLOAD, "--schedules", "plan,one_stream")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "copies to the host first second bytes one run made at" in lines
    assert "%a 0x 1x 128 B 2 µs" in lines
    ran = cli("diff", GPT, OFFLOAD)
    assert (ran.code, "of different graphs" in ran.out) == (1, True)


def test_diff_of_costs_alone(cli: Cli, planned: Path, tmp_path: Path) -> None:
    slower = tmp_path / "slower.fbir"
    text = planned.read_text().partition("\nproven")[0] + "\n"
    slower.write_text(text.replace("time 20us", "time 30us"))
    ran = cli("diff", planned, slower)
    assert (ran.code, "the graph is the same; times" in ran.out) == (1, True)


def test_trouble_of_diff_has_its_own_code(cli: Cli, planned: Path, chain: Path) -> None:
    for words, code in (
        ((planned, planned.with_name("none.fbir")), "FB0701"),
        ((planned, chain), "FB0708"),
        (("-", "-"), "FB0731"),
        ((planned, planned, "--schedules", "a"), "FB0707"),
    ):
        ran = cli("diff", *words)
        assert (ran.code, ran.out) == (2, "")
        assert f"error[{code}]" in ran.err


def test_explain(cli: Cli, planned: Path) -> None:
    ran = cli("explain", GPT)
    assert ran.code == 0, ran.err
    assert "peak: 417 KiB at step 360 of 501: B70 aten.gelu_backward.default" in ran.out
    assert "the one change that lowers it most: making %arange again" in ran.out
    ran = cli("explain", GPT, "%gelu")
    assert "recomputed 1 time, which takes 32.79 µs" in ran.out
    assert "keeping it throughout: peak 445 KiB (+28.4 KiB), time -45.6 µs" in ran.out
    ran = cli("explain", GPT, "blocks.0.attn")
    assert "of recomputation" in ran.out
    ran = cli("explain", OFFLOAD, "%a", "--schedule", "one_stream")
    assert "moved to the host and back, in 2 copies" in ran.out
    assert cli("explain", planned).code == 0


def test_explain_a_budget(cli: Cli, chain: Path) -> None:
    ran = cli("explain", GPT, "--schedule", "least", "--budget", "10%")
    assert ran.code == 0, ran.err
    assert "no plan fits in" in ran.out
    assert "held by the caller" in ran.out
    assert "B8 aten.gelu_backward.default" in ran.out
    ran = cli("explain", GPT, "--schedule", "least", "--budget", "1GiB")
    assert "the plan fits in 1.00 GiB: it takes 417 KiB" in ran.out
    ran = cli("explain", chain, "--budget", "70%", "--activation-budget", "range:0.1")
    assert "the file holds no schedule" in ran.out
    assert "dtr has a plan within it, which takes" in ran.out
    assert "dtr finds none within it, and no plan takes less than" in ran.out
    ran = cli("explain", chain, "--budget", "70%", "--format", "json")
    (fit,) = json.loads(ran.out)["budgets"]
    assert fit["floor"]["bytes"] <= fit["budget"]["bytes"] < fit["plan_bytes"]


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


def test_explain_what_bytes_cost(cli: Cli) -> None:
    ran = cli("explain", GPT, "--schedule", "segments", "--price")
    assert ran.code == 0, ran.err
    assert "by plans of dtr{rounds=0}, simulated and not proven" in ran.out
    ran = cli("explain", GPT, "--schedule", "segments", "--price", "--format", "json")
    assert json.loads(ran.out)["prices"]["is_complete"] is True
    assert "for each GiB" in cli("explain", GPT, "%gelu").out
    assert "keeping all of it throughout: peak" in cli("explain", GPT, "blocks.0").out
    assert "FB0707" in cli("explain", GPT, "%gelu", "--price").err
    assert "FB0450" in cli("explain", GPT, "--budget", "much").err


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


def test_explain_of_what_is_not_there(cli: Cli) -> None:
    for word, meant in (("%gelo", '"%gelu"'), ("blocks.9", "blocks."), ("gelu", "with its %")):
        ran = cli("explain", GPT, word)
        assert ran.code == 2
        assert "error[FB0730]" in ran.err
        assert meant in ran.err


def test_traces_and_graphs(cli: Cli, planned: Path, tmp_path: Path) -> None:
    trace, graph = tmp_path / "t.json", tmp_path / "g.dot"
    assert cli(planned, "--emit", "trace", "-o", trace).code == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert cli(planned, "--emit", "dot", "-o", graph, "-q").code == 0
    assert graph.read_text().startswith("// generated by remat-compile\ndigraph")
    assert cli(planned, "--emit", "dot", "-o", trace).code == 0  # ours as well
    snapshot = tmp_path / "s.pickle"
    assert cli(planned, "--emit", "memory-snapshot", "-o", snapshot).code == 0
    assert snapshot.read_bytes() == remat_compile.load(planned).memory_snapshot()
    assert "FB0707" in cli(planned, "--emit", "memory-snapshot", "-o", "-").err
    assert "FB0707" in cli(planned, "--emit", "dot", "--model", "m.py:f", "-o", graph).err
