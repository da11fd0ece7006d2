"""`remat-compile show`, `planners` and `devices`."""

from __future__ import annotations

from pathlib import Path

from helpers.cli import Cli
from remat_compile.cli.show import curve

OFFLOAD = Path(__file__).parents[2] / "spec/conformance/valid/offload.fbir"


def test_show(cli: Cli, planned: Path) -> None:
    ran = cli("show", planned)
    assert ran.code == 0, ran.err
    for part in (
        "graph        @chain",
        "peak:",
        "%x0",
        "model.py:",
        "^ loss",
        "recomputed",
        "act ",
    ):
        assert part in ran.out
    assert "proven by z3" in ran.out


def test_where_it_was_captured(cli: Cli, planned: Path) -> None:
    assert "captured     not recorded\n" in cli("show", planned).out
    assert planned.read_text().startswith('fbir 1\ncaptured device cpu threads 1 torch ""')
    for threads, shown in ((1, "1 thread"), (8, "8 threads")):
        text = planned.read_text().replace('threads 1 torch ""', f'threads {threads} torch "2.13"')
        again = planned.with_name(f"{threads}.fbir")
        again.write_text(text)
        assert f"captured     on cpu, {shown}, torch 2.13\n" in cli("show", again).out


def test_show_without_recomputation(cli: Cli, chain: Path, tmp_path: Path) -> None:
    assert cli(chain, "-o", tmp_path / "p.fbir", "--planner", "store-all").code == 0
    assert "nothing is recomputed" in cli("show", tmp_path / "p.fbir").out


def test_show_refuses_an_invalid_plan(cli: Cli, planned: Path) -> None:
    text = planned.read_text()
    head, _, tail = text.partition("schedule @")
    planned.write_text(head + "schedule @" + tail.replace("  F0\n", "", 1))
    ran = cli("show", planned)
    assert (ran.code, "error[FB0301]" in ran.err) == (1, True)


def test_show_tells_the_copies(cli: Cli) -> None:
    ran = cli("show", OFFLOAD, "--schedule", "one_stream")
    assert ran.code == 0, ran.err
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "host copies 136 B" in lines
    assert "host: 136 B at step 3 of 20: offload %m" in lines
    assert "%a 128 B, %m 8 B" in lines
    assert "%m host 0.003 ms 0.003 ms 0.001 ms 3 to 4" in lines
    assert "%a device 0.004 ms 0.005 ms 0.001 ms 13 to 14" in lines
    assert "the step waits 0.002 ms for copies" in lines


def test_curve_keeps_the_peak() -> None:
    lines = curve([1, 2, 1000, 2, 1] * 100, width=10, height=4)
    assert len(lines) == 5
    assert all(line.count("█") == 10 for line in lines[:4])
    assert curve([0, 0])[-1].endswith("+--")


def test_lists(cli: Cli) -> None:
    ran = cli("planners")
    assert ran.code == 0, ran.err
    for name in ("auto", "chen", "dtr", "periodic{segments=", "store-all"):
        assert name in ran.out
    ran = cli("devices")
    assert ran.code == 0
    for name in ("h200", "a100-80gb", "rtx-4090", "cpu"):
        assert name in ran.out
