"""Settings of the process that are others at a step than at its capture."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import GuardFailure, PlannedModule, build
from remat_compile.capture.torch import export, lower


class Factories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x) * torch.ones(4) + torch.arange(4) / 3
        return made + torch.zeros(4).sum()


def planned(model: nn.Module, x: Tensor) -> PlannedModule:
    with lower(export(model, (x,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


@pytest.fixture
def x() -> Iterator[Tensor]:
    yield torch.linspace(-1, 1, 12).reshape(3, 4)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            "the default dtype is float64; at capture it was float32",
        ),
        (
            lambda: torch.use_deterministic_algorithms(True),
            "deterministic algorithms are on; at capture they were off",
        ),
    ],
)
def test_what_operators_are_chosen_by_is_refused(
    x: Tensor, change: Callable[[], None], message: str
) -> None:
    ours = planned(Factories(), x)
    change()
    with pytest.raises(GuardFailure, match=f"FB0910.*{message}"):
        ours(x)


class Halves(Factories):
    """Two results that lie in one tensor, which is left to AOTAutograd's wrappers."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        return made[:2], made[2:]  # type: ignore[return-value]


def loss_of(made: Tensor | tuple[Tensor, ...]) -> Tensor:
    parts = (made,) if isinstance(made, Tensor) else made
    return torch.stack([part.square().sum() for part in parts]).sum()


@pytest.mark.parametrize("kind", [Factories, Halves])
@pytest.mark.parametrize(
    ("change", "back", "message"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "where backward() begins, the default dtype is float64; at capture it was float32",
        ),
        (
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
            "where backward() begins, deterministic algorithms are on; at capture they were off",
        ),
    ],
)
def test_a_backward_under_other_settings_is_refused(
    x: Tensor,
    kind: type[Factories],
    change: Callable[[], None],
    back: Callable[[], None],
    message: str,
) -> None:
    """And the next step, under those of the capture, is eager's."""
    model = kind()
    ours = planned(model, x)
    assert ours.planned_step.flight.is_begun_by_node == (kind is Factories)
    loss = loss_of(ours(x))
    change()
    with pytest.raises(GuardFailure) as refused:
        loss.backward()
    back()
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0910"
    assert diagnostic.message == message
    assert diagnostic.hint is not None
    assert "compile again" in diagnostic.hint
    assert all(p.grad is None for p in ours.parameters())
    del loss, refused
    loss_of(ours(x)).backward()
    theirs = copy.deepcopy(model)
    theirs.zero_grad()
    loss_of(theirs(x)).backward()
    for own, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert own.grad is not None
        assert expected.grad is not None
        assert torch.equal(own.grad, expected.grad)


def test_deterministic_algorithms_that_are_switched_off_are_refused_as_well(x: Tensor) -> None:
    torch.use_deterministic_algorithms(True)
    made = planned(Factories(), x)(x)
    torch.use_deterministic_algorithms(False)
    with pytest.raises(GuardFailure, match="algorithms are off; at capture they were on"):
        made.sum().backward()


def test_settings_are_those_of_the_capture(x: Tensor) -> None:
    """Another thread may set them while a plan is looked for."""
    with lower(export(Factories(), (x,))) as lowered:
        torch.set_default_dtype(torch.float64)
        ours = build(lowered, schedule(lowered.program, ()))
    with pytest.raises(GuardFailure, match=r"float64; at capture it was float32"):
        ours(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(torch.backends.mkldnn, "enabled", False),
        lambda: torch.set_flush_denormal(True),
    ],
)
def test_what_kernels_read_counts_as_in_eager(x: Tensor, change: Callable[[], None]) -> None:
    model = Factories()
    ours, theirs = planned(model, x), copy.deepcopy(model)
    change()
    for own, expected in zip(step(ours, x), step(theirs, x), strict=True):
        assert torch.equal(own, expected)


def test_another_default_device_is_refused(x: Tensor) -> None:
    """In eager the factories of this model would mix devices, an error of PyTorch's."""
    ours = planned(Factories(), x)
    torch.set_default_device("meta")
    try:
        with pytest.raises(GuardFailure, match="default device"):
            ours(x)
    finally:
        torch.set_default_device(None)
    step(ours, x)


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    made = model(x)
    tangent = torch.full_like(made, 0.5)
    return (made, *torch.autograd.grad(made, [*model.parameters()], tangent))


# -- Tied weights stay what they were at capture, and what is loaded is what is  ------------------

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Pair(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.b(self.a(x).tanh())).square().sum()


def tied_step(model: nn.Module) -> PlannedModule:
    with lower(export(model, (X,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


UNTIED: dict[str, Callable[[Pair], object]] = {
    "loaded": lambda m: m.load_state_dict(
        {key: value.clone() for key, value in m.state_dict().items()}, assign=True
    ),
    "set": lambda m: setattr(m.b, "weight", nn.Parameter(m.a.weight.detach().clone())),
}


@pytest.mark.parametrize("way", UNTIED)
@pytest.mark.parametrize("of", ["the drop-in", "a copy"])
def test_weights_that_are_no_longer_tied_are_refused(way: str, of: str) -> None:
    step: Any = tied_step(Pair(tied=True))
    step = copy.deepcopy(step) if of == "a copy" else step
    step(X)
    UNTIED[way](step)
    with pytest.raises(GuardFailure, match=r"a\.weight and b\.weight are no longer one tensor"):
        step(X)
    step.b.weight = step.a.weight
    step(X).backward()


def test_weights_that_are_tied_later_are_refused() -> None:
    step: Any = tied_step(Pair(tied=False))
    step.b.weight = step.a.weight
    with pytest.raises(GuardFailure, match=r"a\.weight and b\.weight are one tensor now"):
        step(X)


@pytest.mark.parametrize("through", ["the drop-in", "the model"])
def test_what_is_assigned_by_load_state_dict_is_trained(through: str) -> None:
    model, eager, others = Pair(tied=False), Pair(tied=False), Pair(tied=False)
    step: Any = tied_step(model)
    step(X).backward()
    for of in (eager, step if through == "the drop-in" else model):
        state = {key: value.clone() for key, value in others.state_dict().items()}
        of.load_state_dict(state, assign=True)
    for of in (eager, step):
        of.zero_grad()
        of(X).backward()
    for ours, its in zip(step.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None
        assert its.grad is not None
        assert ours.equal(its)
        assert ours.grad.equal(its.grad)
    assert all(a.equal(b) for a, b in zip(step.buffers(), eager.buffers(), strict=True))


def test_what_is_assigned_in_another_dtype_is_refused_before_anything_runs() -> None:
    step: Any = tied_step(Pair(tied=False))
    state = {key: value.double() for key, value in step.state_dict().items()}
    step.load_state_dict(state, assign=True)
    means = step.norm.running_mean.clone()
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(GuardFailure, match=r"dtype mismatch") as refused,
    ):
        step(X)
    assert [d.code for d in refused.value.diagnostics] == ["FB0910"]
    assert step.norm.running_mean.equal(means)
