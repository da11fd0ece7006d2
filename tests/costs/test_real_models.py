"""Captured models: the predicted peak is the measured one, to the byte."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from helpers.models import FACTORIES
from helpers.slow import default_only
from remat_compile.backends.torch import measure_peak
from remat_compile.capture.torch import export, lower
from remat_compile.costs import measured
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.graph import CALLER_KINDS, Graph
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import Sizes, simulate
from remat_compile.operators.executor import execute


def repeated_forward(graph: Graph) -> list[str]:
    """The forward again after the loss, but for what updates buffers without a replay form."""
    order = list(capture_order(graph))
    after_loss = order.index(graph.loss.name) + 1
    again = [
        c.name
        for c in graph.in_phase("fwd")
        if c.replay is not None or not any(graph.anode[r].kind == "pending" for r in c.results)
    ]
    return order[:after_loss] + again + order[after_loss:]


def captured(name: str) -> tuple[Program, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    module, args, kwargs = FACTORIES[name](torch.float32)
    with lower(export(module, args, kwargs)) as lowered, _disable_current_modes():
        return lowered.program, lowered.values()


BLOCKS = ["mlp", "small-gpt", "small-resnet", "two-loss"]
MEASURED = [*BLOCKS, "gpt", "resnet", "unet", "vit", "gpt-p0"]


@pytest.mark.parametrize("name", default_only(MEASURED, BLOCKS))
def test_predicted_peak_is_the_measured_one(name: str) -> None:
    program, values = captured(name)
    costed = measured(program, values)
    graph = costed.graph
    sizes = Sizes.of(costed).anode
    held = sum(sizes[a.name] for a in graph.anodes if a.kind in CALLER_KINDS)
    for order in (list(capture_order(graph)), repeated_forward(graph)):
        steps = frees_after_last_use(graph, order)
        predicted = simulate(costed, Schedule("s", "", steps)).peak_bytes - held
        _, use = measure_peak(
            lambda steps=steps: execute(costed, steps, values, write_back=False)  # type: ignore[misc]
        )
        assert use.peak_bytes_over_entry == predicted


def test_measuring_whole_and_alone_find_the_same_memory() -> None:
    program, values = captured("small-gpt-flash")
    whole, alone = (measured(program, values, hold_tensors=hold) for hold in (True, False))
    assert whole.graph.anodes == alone.graph.anodes
    for a, b in zip(whole.graph.cnodes, alone.graph.cnodes, strict=True):
        assert (a.name, a.workspace, a.workspace_at(2)) == (b.name, b.workspace, b.workspace_at(2))
