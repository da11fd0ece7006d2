"""`remat-compile verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.cli import Cli, chain_text

OFFLOAD = Path(__file__).parents[2] / "spec/conformance/valid/offload.fbir"


def drop_line(path: Path, text: str, last: bool = False) -> int:
    """Removes the first (or last) line that holds `text`; its number."""
    lines = path.read_text().splitlines()
    indices = [i for i, line in enumerate(lines) if line.strip() == text]
    index = indices[-1 if last else 0]
    del lines[index]
    path.write_text("\n".join(lines) + "\n")
    return index + 1


def test_proven(cli: Cli, planned: Path) -> None:
    ran = cli("verify", planned)
    assert ran.code == 0
    assert ran.out.startswith("proven: plan @")
    assert "activations <= " in ran.out
    assert ran.err == ""


def test_copies_and_the_host_budget(cli: Cli) -> None:
    ran = cli("verify", OFFLOAD, "--schedule", "one_stream")
    assert ran.code == 0, ran.err
    assert "host copies <= " in ran.out
    assert "races" in ran.out
    facts = json.loads(cli("verify", OFFLOAD, "--format", "json").out)
    assert facts["host_bytes"] == 64 * 17
    ran = cli("verify", OFFLOAD, "--schedule", "one_stream", "--host-budget", "135B")
    assert (ran.code, "error[FB0863]" in ran.err) == (1, True)


def test_every_schedule_of_the_file_is_proven(cli: Cli, tmp_path: Path) -> None:
    text = (OFFLOAD.parent / "fused.fbir").read_text()
    plan = tmp_path / "plan.fbir"
    plan.write_text(text)
    ran = cli("verify", plan)
    assert ran.code == 0
    assert [line for line in ran.out.splitlines() if line.startswith("proven")] == [
        "proven: plan @once",
        "proven: plan @twice",
    ]
    plan.write_text(text.replace("{ F1; F2; L; B1; free %h;", "{ F1; F2; L; free %h; B1;"))
    ran = cli("verify", plan)
    assert (ran.code, "error[FB0804]" in ran.err) == (1, True)
    assert "proven: plan @twice" in ran.out
    assert cli("verify", plan, "--schedule", "twice").code == 0
    ran = cli("verify", plan, "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"], report["schedule"]) == (1, "proven", "twice")
    assert [(r["schedule"], r["verdict"]) for r in report["others"]] == [("once", "refuted")]
    assert cli("verify", plan, "--smt-lib", tmp_path / "asked").code == 2


def test_operators_of_no_known_library_are_named(cli: Cli) -> None:
    ran = cli("verify", OFFLOAD, "--schedule", "token")
    named = (
        "operators not in the table (ns.dropout, ns.norm, ns.norm_again and 2 more) write nothing"
    )
    assert named in ran.out


def test_edited_plan_is_refuted_on_its_text(cli: Cli, planned: Path) -> None:
    lines = planned.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("schedule"))
    steps = [line.strip() for line in lines[start:]]
    again = next(s for s in steps if s.startswith("F") and steps.count(s) > 1)
    drop_line(planned, again, last=True)
    ran = cli("verify", planned)
    assert ran.code == 1
    assert f"{planned}:" in ran.err
    assert "error[FB0" in ran.err
    assert "^" in ran.err
    assert ran.out == ""


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


def test_budgets(cli: Cli, planned: Path) -> None:
    assert cli("verify", planned, "--activation-budget", "100%").code == 0
    ran = cli("verify", planned, "--activation-budget", "10B")
    assert ran.code == 1
    assert "error[FB08" in ran.err
    assert cli("verify", planned, "--budget", "0").code == 2


def test_json(cli: Cli, planned: Path) -> None:
    ran = cli("verify", planned, "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"], report["diagnostics"]) == (0, "proven", [])
    assert report["activation_bytes"] > 0
    ran = cli("verify", planned, "--format", "json", "--activation-budget", "10B")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"]) == (1, "refuted")
    assert report["diagnostics"][0]["code"].startswith("FB08")


def test_json_of_a_text_that_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.fbir"
    path.write_text("fbir 1\ngraph {")
    ran = cli("verify", path, "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"]) == (1, "refused")
    assert report["diagnostics"][0]["line"] == 2
    ran = cli("verify", tmp_path / "no.fbir", "--format", "json")
    assert (ran.code, json.loads(ran.out)["diagnostics"][0]["code"]) == (2, "FB0701")


def test_proof_of_another_graph_is_pointed_out(cli: Cli, planned: Path) -> None:
    planned.write_text(planned.read_text().replace("time 10us", "time 11us"))
    ran = cli("verify", planned)
    assert ran.code == 0
    assert "warning[FB0830]" in ran.err


def test_no_schedule(cli: Cli, chain: Path) -> None:
    ran = cli("verify", chain)
    assert (ran.code, "error[FB0708]" in ran.err) == (1, True)


def test_unknown_schedule(cli: Cli, planned: Path) -> None:
    ran = cli("verify", planned, "--schedule", "nix")
    assert (ran.code, "error[FB0708]" in ran.err) == (2, True)


def test_standard_input_errors_show_their_line(cli: Cli) -> None:
    ran = cli("verify", "-", stdin=chain_text().replace("graph @chain", "grph @chain"))
    assert ran.code == 1
    assert "grph @chain" in ran.err


def dynamic(path: Path) -> Path:
    """A two-step graph in the symbol b, and its plan."""
    path.write_text(
        """\
fbir 1
sym b in [1, 64] = 8 of arg 0 dim 0
target "cpu" { granularity 64 }
graph @g {
  %x : input f32[b] bytes 4*b
  %w : param f32[4] bytes 16
  %a : act f32[b] bytes 40*b
  %y : output f32[] bytes 4
  %dy : tangent f32[] bytes 4
  %dw : param_grad f32[4] bytes 16
  F1: fwd %a = aten.mul.Tensor(%x, %w)
  F2: fwd %y = aten.sum.default(%a)
  L: loss %dy = loss(%y)
  B1: bwd %dw = aten.mm.default(%dy, %x) of F1
}
bind { arg "x" = %x; param "w" = %w grad %dw; result %y tangent %dy }
schedule @plan {
  F1
  F2
  free %a
  L
  B1
  free %dy
}
"""
    )
    return path


def test_the_largest_value_of_a_symbol_and_the_step_that_blocks_the_next(
    cli: Cli, tmp_path: Path
) -> None:
    path = dynamic(tmp_path / "b.fbir")
    # F2 takes ceil64(4 b) + 64 + ceil64(40 b) + 64.
    ran = cli("verify", path, "--largest", "b", "--budget", "1000B")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("b = 17 is the largest that holds the budget, and every smaller one")
    assert "warning[FB0820]" in ran.err
    assert "at b = 18" in ran.err
    assert "  F2" in ran.err
    ran = cli("verify", path, "--largest", "b", "--budget", "1MiB", "--format", "json")
    report = json.loads(ran.out)
    assert (report["largest"], report["every_smaller"], report["warnings"]) == (64, True, [])
    ran = cli("verify", path, "--largest", "b", "--budget", "100B")
    assert (ran.code, "error[FB0820]" in ran.err, "at b = 1" in ran.err) == (1, True, True)
    ran = cli("verify", path, "--largest", "c", "--budget", "1000B")
    assert (ran.code, "error[FB0823]" in ran.err) == (1, True)


def test_a_budget_must_hold_for_the_whole_range_unless_told_otherwise(
    cli: Cli, tmp_path: Path
) -> None:
    path = dynamic(tmp_path / "b.fbir")
    ran = cli("verify", path, "--budget", "1000B")
    assert (ran.code, "at b = 64" in ran.err) == (1, True)
    ran = cli("verify", path, "--budget", "1000B", "--at", "sample")
    assert (ran.code, "memory at sample" in ran.out) == (0, True)
    ran = cli("verify", path, "--budget", "10KiB")
    assert (ran.code, "memory for b in [1, 64]" in ran.out) == (0, True)


def test_a_certificate_is_taken_only_where_it_matches(cli: Cli, planned: Path) -> None:
    ran = cli("verify", planned, "--require-certificate")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("certificate accepted: plan @")
    ran = cli("verify", planned, "--require-certificate", "--recheck")
    assert (ran.code, ran.out.startswith("proven: plan @")) == (0, True)
    ran = cli("verify", planned, "--require-certificate", "--activation-budget", "10B")
    assert (ran.code, "error[FB0834]" in ran.err) == (1, True)
    text = planned.read_text()
    planned.write_text(text.replace("values, races", "races"))
    ran = cli("verify", planned, "--require-certificate")
    assert (ran.code, "error[FB0831]" in ran.err, ran.out) == (1, True, "")
    planned.write_text(text.replace("time 10us", "time 11us"))
    ran = cli("verify", planned, "--require-certificate", "--format", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["verdict"]) == (1, "refused")
    assert report["diagnostics"][0]["code"] == "FB0830"


def test_a_time_limit_decides_nothing(cli: Cli, planned: Path) -> None:
    ran = cli("verify", planned, "--time-limit", "1e-9")
    assert (ran.code, ran.out) == (1, "")
    assert "is not decided" in ran.err
    ran = cli("verify", planned, "--time-limit", "1e-9", "--format", "json")
    assert (ran.code, json.loads(ran.out)["verdict"]) == (1, "undecided")


BAD: dict[str, tuple[list[str], str]] = {
    "no place": (["--at", "middle"], "FB0707"),
    "place of a largest value": (["--largest", "b", "--at", "sample"], "FB0707"),
    "no time": (["--time-limit", "0"], "FB0707"),
    "no number of seconds": (["--recheck", "--time-limit", "nan"], "FB0707"),
    "time without an end": (["--recheck", "--time-limit", "inf"], "FB0707"),
    "a value for a flag": (["--require-certificate=yes"], "FB0707"),
    "a word too many": (["--recheck", "b"], "FB0707"),
    "budget of many digits": (["--largest", "b", "--budget", f"{'9' * 5000}B"], "FB0450"),
    "share of the host": (["--host-budget", "50%"], "FB0450"),
    "no bytes on the host": (["--host-budget", "0B"], "FB0451"),
    "schedule without a certificate": (["--require-certificate", "--schedule", "no"], "FB0708"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case: str, cli: Cli, tmp_path: Path) -> None:
    words, code = BAD[case]
    ran = cli("verify", dynamic(tmp_path / "b.fbir"), *words)
    assert (ran.code, ran.out, ran.err.count("error[")) == (2, "", 1), ran.err
    assert f"error[{code}]" in ran.err


def test_names_that_no_file_can_have(cli: Cli) -> None:
    ran = cli("verify", "a\0b")
    assert (ran.code, "error[FB0701]" in ran.err) == (2, True)
    ran = cli("verify", "")
    assert (ran.code, "error[FB0701]" in ran.err) == (2, True)


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
