"""A plan that copies to the host is refused by everything that runs or writes PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remat_compile._torch.execute import execute
from remat_compile.backends.torch import build, emit
from remat_compile.frontends.torch_export import export, lower
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.schedule import HostFree, Offload, Schedule, Wait
from remat_compile.ir.semantics.simulate import simulate


def codes(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(FBError) as refused:
        call()
    return [d.code for d in refused.value.diagnostics]


def test_copies_are_never_ignored() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with lower(export(model, (torch.zeros(2, 4),))) as lowered:
        program = lowered.program
        steps = frees_after_last_use(program.graph, capture_order(program.graph))
        name = program.graph.cnodes[0].results[0]
        copied = (steps[0], Offload(name), Wait(name), HostFree(name), *steps[1:])
        plan = Schedule("plan", "", copied)
        assert simulate(program, plan).host_peak_bytes > 0
        assert codes(lambda: emit(program, plan)) == ["FB0912"]
        assert codes(lambda: build(lowered, plan)) == ["FB0912"]
        assert codes(lambda: execute(program, copied, lowered.values())) == ["FB0912"]
