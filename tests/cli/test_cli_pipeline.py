"""`remat-compile pipeline`: plans, writes, checks, and refuses with all that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.cli import Cli
from helpers.planners.pipeline_rows import LATER
from remat_compile.ir.text.pipeline import parse_pipeline

TWO_PATHS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, y):
        h, g = self.l[0](x).tanh(), self.l[1](x).sin()
        h, g = self.l[2](h) * g, self.l[3](g) + h
        return (h * g * y).mean()

def make():
    return Net(), (torch.randn(4, 8), torch.randn(4, 8))
"""


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


def test_a_picture_of_ranks_and_the_schedule_of_pytorch(
    cli: Cli, chain: Path, tmp_path: Path
) -> None:
    file, schedule = tmp_path / "step.fbpl", tmp_path / "step.csv"
    words = ("--ranks", "3", "--microbatches", "2", "--link", "1GB/s", "-o", file)
    assert cli("pipeline", chain, *words).code == 0
    shown = cli("show", file)
    assert shown.code == 0, shown.err
    assert "FB0738" in cli("show", file, "--format", "json").err
    lines = shown.out.splitlines()
    (rank,) = (line for line in lines if line.startswith("rank 2"))
    assert set(rank.removeprefix("rank 2").split()) == {rank.split()[2]}  # it is never idle
    assert rank.split()[2].startswith("F")
    assert any(line.startswith("1 - 2") for line in lines)
    ran = cli("pipeline", file, "-o", schedule)
    assert ran.code == 0, ran.err
    assert "bytes are not proven in that runtime" in ran.out
    assert schedule.read_text() == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n"
    assert cli("pipeline", file, "-o", schedule).code == 0
    other = cli("pipeline", file, "-o", tmp_path / "step.txt")
    assert other.code == 2
    assert "FB0737" in other.err
    assert not (tmp_path / "step.txt").exists()
    file.write_text(LATER)  # that runtime leaves gradients of parameters to autograd
    refused = cli("pipeline", file, "-o", tmp_path / "later.csv")
    assert "FB0735" in refused.err
    assert "step.fbpl:6:1" in refused.err
    assert not (tmp_path / "later.csv").exists()


def test_as_many_microbatches_as_leave_a_tenth_idle(cli: Cli, chain: Path) -> None:
    def idle(microbatches: str, *more: str) -> str:
        ran = cli("pipeline", chain, "--ranks", "3", "--microbatches", microbatches, *more)
        return ran.out if ran.code == 0 else ran.err

    (number,) = re.findall(r"the step of (\d+) micro-batches", idle("auto"))
    (share,) = re.findall(r"(\d+)% of it idle", idle(number))
    assert int(share) <= 10
    (share,) = re.findall(r"(\d+)% of it idle", idle(str(int(number) - 1)))
    assert int(share) >= 10
    slow = idle("auto", "--link", "10kB/s", "--planner", "interleaved{chunks=1}")
    assert "FB0736" in slow
    assert "FB1023" in idle("some")


def test_what_keeps_a_model_from_more_stages_is_named(cli: Cli, tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(TWO_PATHS)
    ran = cli("pipeline", f"{net}:make", "--ranks", "9", "--device", "v100-16gb")
    assert ran.code == 2
    assert "FB1022" in ran.err
    assert "cross every cut of the longest block" in ran.err


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
