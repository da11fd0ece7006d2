"""The regions of `torch.compile(model, backend="remat")` share one budget, and its bound holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.execution.regions import (
    WIDTH,
    Stack,
    branch,
    compiled,
    loop,
    seeded,
    trained,
)
from remat_compile import Diagnostic, FBError, Plan
from remat_compile.backends.torch import measure_peak
from remat_compile.ir.program import Program
from remat_compile.plans.budget import Baseline
from remat_compile.plans.make import plan_costed
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Phases
from remat_compile.regions import (
    RegionsReport,
    remat,
    session,
)


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_regions_share_a_budget_in_bytes() -> None:
    """Two deep regions in flight together, neither of which may save everything."""
    model, args = seeded(branch)
    whole = trained(model, args)[-1]
    saved = [region.saved_bytes for region in whole.regions if region.status == "planned"]
    assert len(saved) >= 2
    torch._dynamo.reset()
    model, args = seeded(branch)
    budget = int(0.8 * whole.bound_bytes)
    last = trained(model, args, budget=budget)[-1]
    assert last.budget_bytes == budget
    assert last.bound_bytes <= budget < whole.bound_bytes
    less = [region.saved_bytes for region in last.regions if region.status == "planned"]
    assert len(less) == len(saved)
    assert sum(less) < sum(saved)


def test_what_is_measured_stays_below_what_is_proven() -> None:
    """Of a model that is nothing but regions; what the loss outside takes comes on top."""
    model, args = seeded(branch)
    reports: list[RegionsReport] = []
    step = compiled(model, reports, activation_budget="85%")

    def run() -> None:
        step(*args).square().sum().backward()

    for _ in range(2):
        run()
    model.zero_grad(set_to_none=False)
    _, use = measure_peak(run)
    grads = sum(p.numel() * p.element_size() for p in model.parameters())
    around = 4 * args[0].numel() * args[0].element_size()  # the square, its gradient, the branch
    assert reports[-1].holds
    assert use.peak_bytes_over_entry <= reports[-1].bound_bytes + grads + around


def test_calls_of_one_region_add_up() -> None:
    model, args = seeded(loop)
    last = trained(model, args, activation_budget="85%")[-1]
    (block,) = [region for region in last.regions if region.status == "planned"]
    assert block.calls == 3
    assert block.saved_bytes is not None
    assert 3 * block.saved_bytes <= last.bound_bytes <= (last.budget_bytes or 0)


class Tail(nn.Module):
    """A deep region, and one with next to nothing to leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack(10, 0.0)
        self.tail = nn.ModuleList(nn.Linear(w, 4) for w in (WIDTH, 4, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        torch._dynamo.graph_break()
        for layer in self.tail:
            x = F.dropout(torch.tanh(layer(x)), 0.1, self.training)
        return x


def test_a_region_that_no_plan_makes_smaller_keeps_all_and_the_others_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a planner that can leave out nothing of the tail."""
    peaks: list[int] = []

    def planned(program: Program, request: PlanRequest, phases: Phases) -> Plan:
        peak = Baseline.of(program).activation_peak_bytes
        if len(program.graph.cnodes) < 40:
            assert request.budget is not None
            if request.budget.form != "bytes" or request.budget.amount < peak:
                raise FBError(Diagnostic("FB0466", "nothing can be left out"))
            peaks.append(peak)
        return plan_costed(program, request, phases)

    monkeypatch.setattr(session, "plan_costed", planned)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model, x = Tail(), torch.randn(256, WIDTH)
    last = trained(model, (x,), steps=4, activation_budget="330KiB")[-1]  # of 408
    assert [region.status for region in last.regions] == ["planned", "planned"]
    assert last.holds
    assert last.regions[1].proven_bytes == peaks[-1]


@pytest.mark.slow
def test_equal_blocks_hold_each_their_own_parameters() -> None:
    """TorchDynamo makes one region of them, which is called with the parameters of each."""
    blocks, reports = [Stack(2, 0.0) for _ in range(4)], list[RegionsReport]()
    options = {"planner": "dtr", "budget": "100%", "report": reports.append}
    for block in blocks:
        block.compile(backend=remat, options=options)
    # Without a gradient the first block would be a region of its own.
    model, x = nn.Sequential(*blocks), torch.ones(8, WIDTH, requires_grad=True)
    for _ in range(2):
        model(x).sum().backward()
        model.zero_grad()
    (region,) = reports[-1].regions
    assert region.calls == len(blocks)
    assert region.proven_bytes is not None
    assert region.saved_bytes is not None
    states = sum(p.nbytes for p in model.parameters())
    held = sum(b.nbytes for b in model.buffers()) + len(blocks) * x.nbytes
    activations = region.proven_bytes + (len(blocks) - 1) * region.saved_bytes
    assert reports[-1].bound_bytes == 2 * states + held + activations


def test_a_budget_below_the_floor_runs_in_eager_and_says_so_once() -> None:
    model, args = seeded(branch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reports = trained(model, args, activation_budget="1KiB")
    messages = [str(w.message) for w in caught if "FB0957" in str(w.message)]
    regions = [region for region in reports[-1].regions if region.status == "eager"]
    assert regions
    assert len(messages) == len(regions)
    assert all("region" in text and "FB0" in text for text in messages)
    assert "FB0958" in "".join(messages), "what they need together is said"
    assert "is not bounded" in messages[0]
    assert "regions.py:" in messages[0]


def test_an_options_object_may_be_changed_for_another_model() -> None:
    first: list[RegionsReport] = []
    second: list[RegionsReport] = []
    options = {"planner": "dtr", "report": first.append, "activation_budget": "85%"}
    x = torch.ones(64, WIDTH)
    torch.compile(Stack(), backend=remat, options=options)(x).sum().backward()
    options |= {"report": second.append, "activation_budget": "100%"}
    torch.compile(Stack(6), backend=remat, options=options)(x).sum().backward()
    assert [len(report.regions) for report in (*first, *second)] == [1, 1]
    budgets = [report.budget_bytes for report in (*first, *second)]
    assert budgets[0] is not None
    assert budgets[1] is not None


def test_regions_of_a_partial_backend_share_its_budget() -> None:
    reports: list[RegionsReport] = []
    backend = partial(remat, planner="dtr", activation_budget="85%", report=reports.append)
    model, args = seeded(branch)
    torch.compile(model, backend=backend)(*args).sum().backward()
    assert len([r for r in reports[-1].regions if r.status == "planned"]) == 2
