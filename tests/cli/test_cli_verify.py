"""`remat-compile verify`."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.cli import Cli

OFFLOAD = Path(__file__).parents[2] / "spec/conformance/valid/offload.fbir"


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
