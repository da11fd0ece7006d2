"""The table of `fit`, compared with ordinary training and with the simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compile
from remat_compile.device.memory import measure_peak
from remat_compile.ir.diagnostics import FBError
from remat_compile.plans.plan import Plan
from remat_compile.report.fit import ACTIVATIONS, GRADIENTS, IN_UPDATE, PARAMETERS, STATES
from remat_compile.report.page import page

ROOFLINE: dict[str, Any] = {"costs": "roofline", "device": "t4", "cache": False}


class Net(nn.Module):
    def __init__(self, width: int = 64, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())]
        self.layers = nn.Sequential(*made)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), y)


def sample(batch: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(batch, 64), torch.randn(batch, 64)


@pytest.mark.parametrize("batch", [4, 400])
@pytest.mark.parametrize("name", ["adamw", "adamw-fused", "sgd"])
def test_the_sum_is_what_training_takes(name: str, batch: int) -> None:
    """Measured bytes of a whole ordinary step: its update is the fullest moment of a small batch,
    its backward that of a large one."""
    model, args = Net(), sample(batch)
    plan = remat_compile.plan(model, args, planner="store-all", cache=False, progress=False)
    fit = plan.fit(name)
    how: dict[str, Any] = {"fused": True} if name == "adamw-fused" else {"foreach": True}
    kind = torch.optim.SGD if name == "sgd" else torch.optim.AdamW
    optimizer = kind(model.parameters(), 0.01, **how)

    def step() -> None:
        loss = model(*args)  # alive over the update, as in a training loop
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    _, use = measure_peak(step)
    states = [v for own in optimizer.state.values() for v in own.values() if v.dim()]
    held = sum(t.nbytes for t in (*model.parameters(), *args, *states))
    measured = use.peak_bytes_over_entry + held
    assert abs(fit.now.bytes - measured) <= 256  # scalars of the optimizer, and the loss
    assert (fit.now.at == IN_UPDATE) == (batch == 4 and name == "adamw")


def test_rows_add_up_and_say_whether_a_plan_helps() -> None:
    model, args = Net(), sample(400)
    plan = remat_compile.plan(
        model, args, activation_budget="50%", planner="dtr", costs="roofline", device="t4",
        cache=False, progress=False,
    )  # fmt: skip
    fit = plan.fit("sgd")
    rows = {row.kind: row for row in fit.rows}
    assert sum(row.plan_bytes for row in fit.rows) == fit.planned.bytes
    assert sum(row.now_bytes for row in fit.rows) == fit.now.bytes
    assert fit.planned.bytes == plan.peak_bytes + (fit.library_bytes or 0)
    assert fit.now.bytes == plan.baseline.peak_bytes + (fit.library_bytes or 0)
    weights = sum(-(-p.nbytes // 512) * 512 for p in model.parameters())
    assert rows[PARAMETERS].now_bytes == rows[PARAMETERS].plan_bytes == weights
    assert rows[ACTIVATIONS].plan_bytes < rows[ACTIVATIONS].now_bytes
    assert rows[STATES].now_bytes == 0
    assert (fit.lowers, fit.fits_now, fit.fits) == (True, True, True)
    assert fit.verdict() == [f"it fits into t4 as it is: {shown(fit.now.bytes)} of 14.7 GiB"]
    assert "What fills the device" in page(plan._subject)


def shown(size: int) -> str:
    from remat_compile.ir.units import format_bytes

    return format_bytes(size)


def on_less(plan: Plan, memory: int) -> Plan:
    target = replace(plan.program.target, memory_bytes=memory)
    return replace(plan, program=replace(plan.program, target=target))


def test_a_plan_that_lowers_nothing_says_so_first() -> None:
    """At a small batch the update is the fullest moment, whatever is recomputed."""
    plan = remat_compile.plan(Net(), sample(8), activation_budget="60%", planner="dtr", **ROOFLINE)
    fit = on_less(plan, 200 << 10).fit()
    first, *rest = fit.verdict()
    assert first.startswith("the plan does not lower the device's peak: ")
    assert first.endswith(IN_UPDATE)
    assert any('what would: the optimizer "sgd"' in line for line in rest)
    assert any("updates in the plan" in line for line in rest)
    assert fit.planned.by_kind[GRADIENTS] == fit.planned.by_kind[PARAMETERS]
    assert (fit.lowers, fit.fits) == (False, False)


def test_an_optimizer_of_the_program_is_its_own() -> None:
    model, args = Net(), sample(8)
    optimizer = torch.optim.AdamW(model.parameters())
    plan = remat_compile.plan(model, args, optimizer=optimizer, planner="zero-offload", **ROOFLINE)
    fit = plan.fit()
    assert fit.optimizer is None
    with pytest.raises(FBError, match="FB0968"):
        plan.fit("sgd")
    assert fit.planned.bytes == plan.peak_bytes + (fit.library_bytes or 0)
    assert fit.planned.by_kind[STATES] < fit.now.by_kind[STATES]
