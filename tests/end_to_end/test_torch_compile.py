"""`torch.compile(model, backend="remat")` trains what eager PyTorch trains, region by region.

What is compared with is always the user's own model, run in eager on equal random states.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.execution.regions import (
    FACTORIES,
    WIDTH,
    Stack,
    branch,
    compiled,
    seeded,
    trained,
)
from helpers.slow import default_only
from remat_compile import FBError
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    default_only(
        [(name, dtype) for dtype in (torch.float32, torch.float64) for name in FACTORIES],
        [(name, torch.float32) for name in FACTORIES],
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
