"""A model of three layers, and plans that compute some of it twice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import frees_after_last_use
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule


class Tiny(nn.Module):
    """A linear layer, a dropout and a batch norm: a view, a token and a replay form."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn(self.drop(self.lin(x)).relu())
        return out


def tiny() -> Program:
    with lower(export(Tiny(), (torch.zeros(2, 4),))) as lowered:
        return lowered.program


def schedule(program: Program, again: Iterable[str]) -> Schedule:
    """The capture order, with `again` computed a second time after the loss."""
    graph = program.graph
    forward = [c.name for c in graph.in_phase("fwd")]
    backward = [c.name for c in graph.in_phase("bwd")]
    order = [*forward, graph.loss.name, *again, *backward]
    return Schedule("plan", "by hand", frees_after_last_use(graph, order))


def replayable(program: Program) -> list[str]:
    """Forward cNodes that may run after the loss."""
    updated = {b.name for b in program.binding.buffers if b.update is not None}
    graph = program.graph
    return [c.name for c in graph.in_phase("fwd") if not updated & set(graph.reads(c, 2))]
