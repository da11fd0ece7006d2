"""What people do with a model while it trains, done with the drop-in and with the original."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import remat_compile
from helpers.execution.run_again import RunAgain
from helpers.training import assert_same_tensors
from remat_compile import FBError, Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.plans.compare.step import StepReport, StepRunner, compare_step

AGAIN: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}
X = torch.linspace(-1, 1, 32).reshape(4, 8)
TARGET = X.flip(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.second = nn.Dropout(0.1), nn.Linear(16, 8)

    def forward(
        self, x: Tensor, target: Tensor | None = None, *, scale: float = 1.0
    ) -> tuple[Tensor | None, Tensor]:
        """The loss, where there is a target, and the prediction."""
        y = self.second(self.drop(torch.tanh(self.norm(self.first(x))))) * scale
        return (None if target is None else F.mse_loss(y, target), y)


@pytest.fixture(scope="module")
def planned() -> nn.Module:
    return remat_compile.compile(Net(), (X, TARGET), **AGAIN)


@pytest.fixture
def pair(planned: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A drop-in and an original, each with parameters of its own."""
    return copy.deepcopy(planned), Net()


def assert_same_state(ours: nn.Module, theirs: nn.Module) -> None:
    pairs = (("named_parameters", "parameter"), ("named_buffers", "buffer"))
    for name, what in pairs:
        assert_same_tensors(dict(getattr(ours, name)()), dict(getattr(theirs, name)()), what)
    grads = [{n: p.grad for n, p in model.named_parameters()} for model in (ours, theirs)]
    assert_same_tensors(grads[0], grads[1], "gradient")


def both(pair: tuple[nn.Module, nn.Module], loop: Callable[[nn.Module], None]) -> None:
    for model in pair:
        torch.manual_seed(1)
        loop(model)
    assert_same_state(*pair)


@pytest.mark.filterwarnings("ignore:remat-compile. a second forward")
@pytest.mark.parametrize("order", ["sum", "first", "second"])
def test_two_forwards_before_a_backward(pair: tuple[nn.Module, nn.Module], order: str) -> None:
    def loop(model: nn.Module) -> None:
        losses = [model(X, TARGET)[0], model(2 * X, TARGET)[0]]
        if order == "sum":
            losses = [losses[0] + losses[1]]
        for loss in losses if order == "first" else reversed(losses):
            loss.backward()

    both(pair, loop)


def test_accumulation_and_clipping(pair: tuple[nn.Module, nn.Module]) -> None:
    def loop(model: nn.Module) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            for scale in (1, 2):
                (model(scale * X, TARGET)[0] / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()

    both(pair, loop)


def test_closures_as_of_lightning(pair: tuple[nn.Module, nn.Module]) -> None:
    def loop(model: nn.Module) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(X, TARGET)[0]
            loss.backward()
            return loss

        for _ in range(2):
            model.train()
            optimizer.step(closure)
            model.eval()
            with torch.no_grad():
                model(X[:2])
        model.train()

    both(pair, loop)


def test_a_forward_that_is_wrapped_as_accelerate_does() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        ours = remat_compile.compile(Net(), (X, TARGET), **AGAIN)

    def loop(model: Any) -> None:
        inner = model.forward.__func__

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            with torch.autocast("cpu", torch.bfloat16):
                made = inner(model, *args, **kwargs)
            return tuple(part.float() for part in made)

        model.forward = forward
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(X, target=TARGET)[0].backward()
            optimizer.step()
            optimizer.zero_grad()

    both((ours, Net()), loop)


def test_adapters_on_a_frozen_model() -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear):
            super().__init__()
            self.base = base
            self.down = nn.Parameter(torch.full((2, base.in_features), 0.1))
            self.up = nn.Parameter(torch.full((base.out_features, 2), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.base(x) + x @ self.down.T @ self.up.T
            return made

    def model() -> Any:
        net: Any = Net().requires_grad_(False)
        net.first, net.second = Adapted(net.first), Adapted(net.second)
        return net

    def loop(net: nn.Module) -> None:
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
        for _ in range(2):
            optimizer.zero_grad()
            net(X, TARGET)[0].backward()
            optimizer.step()

    both((remat_compile.compile(model(), (X, TARGET), **AGAIN), model()), loop)


def test_a_graph_that_is_kept(pair: tuple[nn.Module, nn.Module]) -> None:
    def loop(model: nn.Module) -> None:
        loss, prediction = model(X, TARGET)
        loss.backward(retain_graph=True)
        prediction.square().sum().backward(retain_graph=True)
        loss.backward()

    both(pair, loop)


CALLS: tuple[Callable[[nn.Module], Any], ...] = (
    lambda model: model(X, TARGET),
    lambda model: model(X, target=TARGET),
    lambda model: model(target=TARGET, x=X),
    lambda model: model(X, TARGET, scale=1.0),
)


@pytest.mark.parametrize("named", [0, 1, 2])
def test_arguments_by_position_or_by_name(named: int) -> None:
    given = {"x": X, "target": TARGET}
    args = tuple(list(given.values())[: 2 - named])
    ours = remat_compile.compile(Net(), args, dict(list(given.items())[2 - named :]), **AGAIN)
    for call in CALLS:
        both((copy.deepcopy(ours), Net()), lambda model: call(model)[0].backward())  # noqa: B023
    others = "other arguments than the sample did"
    with pytest.raises(FBError, match=rf"{others}: scale=2\.0"):
        ours(X, TARGET, scale=2.0)
    with pytest.raises(FBError, match=f"{others}: missing a required argument: 'x'"):
        ours(target=TARGET)
    with pytest.raises(FBError, match="argument 1 is None"):
        ours(X)


def test_a_pytorch_that_hides_what_takes_flat_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compile.capture.trace.joint._OVER_ARGUMENTS", "")
    ours = remat_compile.compile(Net(), (X,), {"target": TARGET}, **AGAIN)
    both((ours, Net()), lambda model: model(X, TARGET)[0].backward())


@pytest.mark.filterwarnings("ignore")  # of what PyTorch itself looks into
def test_a_step_that_is_compiled_once_more(pair: tuple[nn.Module, nn.Module]) -> None:
    """A `torch.compile` around a training loop does not look into the planned step."""

    def loop(model: nn.Module) -> None:
        step = torch.compile(model, backend="eager") if model is pair[0] else model
        for _ in range(2):
            step(X, TARGET)[0].backward()

    both(pair, loop)


def test_signature_and_name_are_those_of_the_original(planned: nn.Module) -> None:
    assert inspect.signature(planned.forward) == inspect.signature(Net().forward)
    assert (type(planned).__name__, planned.forward.__doc__) == ("Net", Net.forward.__doc__)
    assert list(planned.state_dict()) == list(Net().state_dict())


def test_a_copy_trains_its_own_parameters(planned: nn.Module) -> None:
    before = {name: p.detach().clone() for name, p in planned.named_parameters()}

    def loop(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("first.weight").mul_(2)
        prediction = model(X, TARGET)[1]  # the loss is not used: its gradients are None
        prediction.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    both((copy.deepcopy(planned), Net()), loop)
    assert_same_tensors(dict(planned.named_parameters()), before, "parameter")
    assert all(p.grad is None for p in planned.parameters())


def test_a_copy_is_guarded(planned: nn.Module) -> None:
    ours: Any = copy.deepcopy(planned)
    ours.drop.p = 0.5
    with pytest.raises(FBError, match=r"drop\.p == \S+ no longer holds"):
        ours(X, TARGET)
    copy.deepcopy(planned)(X, TARGET)


def test_a_copy_plans_other_shapes_for_itself() -> None:
    model = remat_compile.compile(Net(), (X, TARGET), on_new_shape="replan", **AGAIN)
    model(X[:2], TARGET[:2])

    def loop(net: nn.Module) -> None:
        with torch.no_grad():
            net.get_parameter("first.weight").mul_(2)
        net.norm.load_state_dict(nn.BatchNorm1d(16).state_dict())  # type: ignore[union-attr]
        net(X[:2], TARGET[:2])[0].backward()

    both((copy.deepcopy(model), Net()), loop)


def test_averages_of_weights(pair: tuple[nn.Module, nn.Module]) -> None:
    averages = []
    for model in pair:
        torch.manual_seed(1)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(X, TARGET)[0].backward()
            optimizer.step()
            average.update_parameters(model)
        averages.append({**average.module.state_dict()})
        with torch.no_grad():
            averages[-1]["of x"] = average.eval()(X)[1]
    assert_same_tensors(averages[0], averages[1], "average")


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_what_is_pickled_is_the_model(pair: tuple[nn.Module, nn.Module], way: str) -> None:
    ours, theirs = pair
    file = io.BytesIO()
    save: Callable[..., None] = pickle.dump if way == "pickle" else torch.save
    with pytest.warns(UserWarning, match="FB0950"):
        save(ours, file)
    file.seek(0)
    loaded = pickle.load(file) if way == "pickle" else torch.load(file, weights_only=False)
    assert type(loaded) is Net
    both((loaded, theirs), lambda model: model(X, TARGET)[0].backward())


def test_a_drop_in_is_compiled_as_the_model_that_it_stands_for(planned: nn.Module) -> None:
    again = remat_compile.compile(copy.deepcopy(planned), (X, TARGET), **AGAIN)
    both((again, Net()), lambda model: model(X, TARGET)[0].backward())


def test_a_drop_in_inside_of_a_model(planned: nn.Module) -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner, self.last = inner, nn.Linear(8, 8)
            nn.init.eye_(self.last.weight)
            nn.init.zeros_(self.last.bias)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(self.inner(x, x)[1])
            return made

    ours = remat_compile.compile(Outer(copy.deepcopy(planned)), (X,), **AGAIN)
    both((ours, Outer(Net())), lambda model: model(X).sum().backward())


def test_gradients_in_evaluation() -> None:
    ours = remat_compile.compile(Net().eval(), (X, TARGET), **AGAIN)
    both((ours, Net().eval()), lambda model: model(X, TARGET)[0].backward())


def test_a_copy_is_made_without_a_word(planned: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(planned)


# -- A step beside eager where one of them does not repeat its own bits ---------------------------


@pytest.fixture(scope="module")
def plan() -> Plan:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return remat_compile.plan(model, (torch.randn(3, 4),), planner="store-all")


def compared(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, *, ours: bool | None, noise: Sequence[float]
) -> StepReport:
    """The report where the gradients of one side, or of both, get `noise`, the last for ever."""
    left, run = list(noise), StepRunner.run

    def noisy(self: StepRunner, *given: object) -> dict[str, Tensor]:
        values = run(self, *given)  # type: ignore[arg-type]
        if ours in (None, isinstance(self.module, PlannedModule)):
            more = left.pop(0) if len(left) > 1 else left[0]
            values = {n: t + more if n.startswith("gradient") else t for n, t in values.items()}
        return values

    module = plan.bind()
    monkeypatch.setattr(StepRunner, "run", noisy)
    assert plan._exported is not None
    return compare_step(plan, module, plan._exported, repeats=1)


@pytest.mark.parametrize("ours", [True, False])
def test_what_changes_from_step_to_step_does_not_count(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    report = compared(plan, monkeypatch, ours=ours, noise=[1e-5, 0.0])
    assert report.bit_equal
    assert report.irreproducible == 4
    assert 0 < report.max_difference < 1e-3


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("noise", [[1e-5], [nan], [1e3, 0.0]])
def test_what_repeats_or_is_far_counts(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, ours: bool, noise: list[float]
) -> None:
    report = compared(plan, monkeypatch, ours=ours, noise=noise)
    if not ours and noise == [1e3, 0.0]:  # eager's own spread is as large
        assert report.bit_equal
    else:
        assert not report.bit_equal
        assert report.irreproducible == 0


def test_no_number_equals_no_number(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    report = compared(plan, monkeypatch, ours=None, noise=[nan])
    assert report.bit_equal
    assert report.irreproducible == 0
    assert report.max_difference == 0.0


@pytest.mark.parametrize(("device", "lines"), [("cpu", 1), ("cuda:0", 2)])
def test_more_than_proven_is_told_with_what_the_allocator_adds(device: str, lines: int) -> None:
    report = StepReport(3 << 20, 4 << 20, 0.1, 0.1, bit_equal=True, max_difference=0.0, tensors=3)
    assert report.above(3 << 20, device) == []
    said = report.above(2 << 20, device)
    assert len(said) == lines
    assert "by 1.00 MiB" in said[0]
    assert ("expandable_segments:True" in said[-1]) == (lines == 2)
