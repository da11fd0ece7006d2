"""Writes the plans of `tests/verifier/bugs` that come from PyTorch 2.13: what its partitioner ran.

    python tests/runners/make_bugs.py

They are kept as text, since a later release may be right.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn

from helpers.models import MODELS
from helpers.paths import TESTS
from remat_compile.capture.decisions import schedule_of
from remat_compile.capture.decisions.partitioner import decide_partitioner
from remat_compile.capture.torch import export, lower
from remat_compile.ir.text.printer import format_program

BUGS = TESTS / "verifier" / "bugs"


class Dropout(nn.Module):
    """The reproducer of the report: dropout between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        out: Tensor = self.down(torch.dropout(hidden, 0.5, train=True)).square().sum()
        return out


def text(model: nn.Module, args: tuple[Tensor, ...], plans: dict[str, float]) -> str:
    with lower(export(model, args)) as lowered:
        program = lowered.program
        for name, budget in plans.items():
            decision = decide_partitioner(lowered, budget)
            program = program.with_schedule(schedule_of(program.graph, decision, name))
    return format_program(program)


def main() -> None:
    torch.manual_seed(0)
    dropped = text(Dropout().train(), (torch.randn(8, 16),), {"half": 0.5, "none": 0.0})
    (BUGS / "dropout_redrawn.fbir").write_text(dropped, encoding="utf-8")
    mlp, args, _ = MODELS["mlp-loss"](torch.float32)
    peaks = text(mlp, args, {"half": 0.5, "fifth": 0.2, "none": 0.0})
    (BUGS / "lower_budget_higher_peak.fbir").write_text(peaks, encoding="utf-8")


if __name__ == "__main__":
    main()
