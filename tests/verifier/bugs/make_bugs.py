"""Writes the plans of this folder that come from PyTorch 2.13: what its partitioner ran.

    python tests/verifier/bugs/make_bugs.py

They are kept as text, since a later release may be right.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from models import MODELS  # noqa: E402
from remat_compile.frontends.decisions import schedule_of  # noqa: E402
from remat_compile.frontends.decisions.partitioner import decide_partitioner  # noqa: E402
from remat_compile.frontends.torch_export import export, lower  # noqa: E402
from remat_compile.ir.text.printer import format_program  # noqa: E402


class Dropout(nn.Module):
    """The reproducer of the report: dropout between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(torch.dropout(hidden, 0.5, train=True)).square().sum()


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
    (HERE / "dropout_redrawn.fbir").write_text(dropped, encoding="utf-8")
    mlp, args, _ = MODELS["mlp-loss"](torch.float32)
    peaks = text(mlp, args, {"half": 0.5, "fifth": 0.2, "none": 0.0})
    (HERE / "lower_budget_higher_peak.fbir").write_text(peaks, encoding="utf-8")


if __name__ == "__main__":
    main()
