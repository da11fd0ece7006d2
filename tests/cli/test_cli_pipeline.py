"""`remat-compile pipeline`: plans, writes, checks, and refuses with all that is wrong."""

from __future__ import annotations

from pathlib import Path

from helpers.cli import Cli
from remat_compile.ir.text.pipeline import parse_pipeline


def test_plans_a_text_and_checks_its_file(cli: Cli, chain: Path, tmp_path: Path) -> None:
    file = tmp_path / "step.fbpl"
    words = ("--ranks", "3", "--microbatches", "4", "--link", "1GB/s", "--budget", "40000B")
    ran = cli("pipeline", chain, *words, "-o", file, "--planner", "madpipe{tries=2}")
    assert ran.code == 0, ran.err
    assert "planned period" in ran.out
    assert f"wrote {file}" in ran.out
    pipeline = parse_pipeline(file.read_text())
    assert (pipeline.ranks, pipeline.microbatches, pipeline.budget_bytes) == (3, 4, 40000)
    assert pipeline.claims is not None
    assert max(pipeline.claims.peak_bytes_R) <= 40000
    checked = cli("pipeline", file)
    assert checked.code == 0, checked.err
    assert "3 ranks, 4 micro-batches by madpipe{tries=2}" in checked.out
    again = cli("pipeline", chain, *words, "-o", file)  # one of ours may be written over
    assert again.code == 0, again.err


def test_a_broken_file_is_shown_with_its_line(cli: Cli, chain: Path, tmp_path: Path) -> None:
    file = tmp_path / "step.fbpl"
    assert cli("pipeline", chain, "--microbatches", "2", "-o", file).code == 0
    lines = file.read_text().splitlines(keepends=True)
    broken = [line for line in lines if line != "  wait act 0 mb 0\n"]
    assert len(broken) == len(lines) - 2
    file.write_text("".join(broken))
    ran = cli("pipeline", file)
    assert ran.code == 1
    assert "FB1007" in ran.err or "FB1012" in ran.err
    assert "step.fbpl:" in ran.err
    assert "| " in ran.err
    file.write_text("row 0\n")
    assert "FB1002" in cli("pipeline", file).err


def test_all_that_is_wrong_is_told_at_once(cli: Cli, chain: Path, tmp_path: Path) -> None:
    wrong = ("--microbatches", "0", "--budget", "50%", "--link", "fast", "--planner", "rotor")
    ran = cli("pipeline", chain, *wrong)
    assert ran.code == 2
    for code in ("FB1023", "FB0450", "FB0472", "FB1021"):
        assert code in ran.err
    many = cli("pipeline", chain, "--ranks", "40")
    assert many.code == 2
    assert "FB1022" in many.err
    small = cli("pipeline", chain, "--budget", "10B")
    assert small.code == 1
    assert "FB1020" in small.err
    assert "give at least" in small.err
    note = tmp_path / "notes.txt"
    note.write_text("mine")
    assert "FB0719" in cli("pipeline", chain, "-o", note).err
    assert note.read_text() == "mine"
