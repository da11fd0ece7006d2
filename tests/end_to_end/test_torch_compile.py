"""`torch.compile(model, backend="remat")` trains what eager PyTorch trains, region by region.

What is compared with is always the user's own model, run in eager on equal random states.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.execution.regions import (
    FACTORIES,
    WIDTH,
    Stack,
    branch,
    compiled,
    loop,
    seeded,
    trained,
)
from helpers.slow import default_only
from remat_compile import Diagnostic, FBError, Plan
from remat_compile.backends.torch import measure_peak
from remat_compile.ir.program import Program
from remat_compile.plans.budget import Baseline
from remat_compile.plans.make import plan_costed
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Phases
from remat_compile.regions import RegionsReport, remat, session


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "dtype"),
    default_only(
        [(name, dtype) for dtype in (torch.float32, torch.float64) for name in FACTORIES],
        [("loop", torch.float32), ("speech", torch.float32)],
    ),
)
def test_trains_as_eager_does(name: str, dtype: torch.dtype) -> None:
    model, args = seeded(FACTORIES[name])
    args = tuple(
        a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    )
    reports = trained(model.to(dtype), args, activation_budget="85%")
    assert reports, "nothing was told"
    last = reports[-1]
    planned = [region for region in last.regions if region.status == "planned"]
    assert planned
    assert last.holds
    assert last.budget_kind == "activation"


@pytest.mark.slow
def test_a_speech_model_of_transformers() -> None:
    """Its attention mask and its loss look into the data."""
    transformers = pytest.importorskip("transformers")
    config = transformers.HubertConfig(
        vocab_size=12,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,  # its masks are NumPy's, which TorchDynamo draws otherwise
        layerdrop=0.0,
    )
    torch.manual_seed(0)
    model = transformers.HubertForCTC(config).train()
    twin, reports = copy.deepcopy(model), []
    step = compiled(model, reports, activation_budget="90%")
    x, y = torch.randn(2, 2000), torch.randint(1, 12, (2, 6))
    for seed in range(4):
        losses = []
        for run in (step, twin):
            torch.manual_seed(seed)
            losses.append(run(input_values=x, labels=y).loss)
            losses[-1].backward()
        assert torch.equal(*losses)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None and theirs.grad is None) or torch.equal(ours.grad, theirs.grad)
    assert reports[-1].holds


def test_other_shapes_are_planned_too() -> None:
    """TorchDynamo makes the batch a symbol at the second size; each size is planned."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = Stack()
    twin, reports = copy.deepcopy(model), []
    step = compiled(model, reports, activation_budget="85%")
    for batch in (256, 192, 128, 192):
        x = torch.randn(batch, WIDTH)
        for run in (step, twin):
            torch.manual_seed(batch)
            run(x).square().mean().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert reports[-1].holds
    assert [region.status for region in reports[-1].regions] == ["planned"] * 3
    assert [region.calls for region in reports[-1].regions] == [1, 1, 1]


def test_without_gradients_regions_run_as_they_are() -> None:
    model, args = seeded(branch)
    reports: list[RegionsReport] = []
    step = compiled(model, reports, activation_budget="1B", fallback=False)
    model.eval()
    with torch.no_grad():
        assert torch.equal(step(*args), model(*args))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert torch.equal(step(*args), model(*args))
    assert reports == []


def test_eval_mode_with_gradients() -> None:
    model, args = seeded(branch)
    reports = trained(model.eval(), args, activation_budget="85%")
    assert reports[-1].holds


def test_mixed_precision() -> None:
    model, args = seeded(branch)
    twin = copy.deepcopy(model)
    step = compiled(model, [], activation_budget="85%")
    for _ in range(2):
        made = []
        for run in (step, twin):
            torch.manual_seed(3)
            with torch.autocast("cpu", torch.bfloat16):
                out = run(*args)
            out.float().square().mean().backward()
            made.append(out)
        assert torch.equal(*made)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None and theirs.grad is None) or torch.equal(ours.grad, theirs.grad)


def test_parameters_that_no_result_uses_get_no_gradient() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x).tanh(), self.b(x).tanh()

    model = Two()
    compiled(model, [])(torch.randn(3, 4))[0].sum().backward()
    assert model.a.weight.grad is not None
    assert model.b.weight.grad is None


def test_without_a_fallback_it_is_refused() -> None:
    model, args = seeded(branch)
    step = compiled(model, [], activation_budget="1KiB", fallback=False)
    with pytest.raises(FBError) as refused:
        step(*args)
    assert refused.value.diagnostics[0].code == "FB0466"


class Writes(nn.Module):
    """Writes to an activation that came from an earlier region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Stack(), Stack()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        x.mul_(2)
        out: Tensor = self.second(x)
        return out


def test_a_region_outside_of_the_language_runs_in_eager() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model, x = Writes(), torch.randn(32, WIDTH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reports = trained(model, (x,), activation_budget="85%")
    messages = [str(w.message) for w in caught if "FB0957" in str(w.message)]
    assert len(messages) == 1
    assert "FB0508" in messages[0]
    statuses = sorted(region.status for region in reports[-1].regions)
    assert statuses == ["eager", "planned"]


def test_a_mistake_of_ours_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> None:
        raise KeyError("layers")

    monkeypatch.setattr(session, "costed", mistaken)
    model, x = Counts(), torch.ones(2, 4)
    with pytest.warns(UserWarning, match=r"FB0957.*FB0521: KeyError: 'layers'"):
        made = compiled(model, [])(x)
    assert torch.equal(made, model(x))
    torch._dynamo.reset()
    with pytest.raises(FBError) as refused:
        compiled(model, [], fallback=False)(x)
    assert refused.value.diagnostics[0].code == "FB0521"


class Counts(nn.Module):
    """Writes to a buffer, and then reads its argument, which may be a view of that."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        out: Tensor = self.layer(x).tanh()
        return out


def test_an_argument_that_is_written_to_as_a_buffer_runs_in_eager() -> None:
    model = Counts()
    twin = copy.deepcopy(model)
    step = compiled(model, [])
    assert torch.equal(step(torch.ones(2, 4)), twin(torch.ones(2, 4)))
    with pytest.warns(UserWarning, match="shares memory with a buffer") as said:
        made = [step(model.seen.view(2, 4)) for _ in range(2)]
    assert len([w for w in said if "FB0957" in str(w.message)]) == 1
    assert all(torch.equal(one, twin(twin.seen.view(2, 4))) for one in made)
    assert torch.equal(model.seen, twin.seen)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"buget": "8GiB"}, "FB0723", 'Did you mean "budget"?'),
        ({"budget": "8 quarts"}, "FB0450", "quarts"),
        ({"budget": -1}, "FB0451", "more than zero"),
        ({"budget": "8GiB", "activation_budget": "1GiB"}, "FB0452", "two budgets"),
        ({"fallback": "yes"}, "FB0707", "fallback is 'yes'"),
        ({"report": "yes"}, "FB0707", "report is a str"),
        ({"planner": "offload-greedy"}, "FB0474", "copies to the host"),
    ],
)
def test_wrong_options_are_refused_with_one_message(
    options: dict[str, Any], code: str, says: str
) -> None:
    model = torch.compile(nn.Linear(2, 2), backend=remat, options=options)
    with pytest.raises(FBError) as refused:
        model(torch.ones(1, 2))
    assert [d.code for d in refused.value.diagnostics] == [code]
    assert says in refused.value.diagnostics[0].message
    assert refused.value.usage


def test_nothing_of_a_step_is_kept() -> None:
    model = Stack()
    step = compiled(model, [], activation_budget="85%")
    x = torch.randn(32, WIDTH, requires_grad=True)
    step(x).sum().backward()
    gone = weakref.ref(x), weakref.ref(next(model.parameters()))
    del x
    gc.collect()
    assert gone[0]() is None
    del model, step
    torch._dynamo.reset()
    gc.collect()
    assert gone[1]() is None


def test_the_entry_point_names_the_backend() -> None:
    (entry,) = entry_points(group="torch_dynamo_backends", name="remat")
    assert entry.load() is remat


# -- The regions of `torch ------------------------------------------------------------------------


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
