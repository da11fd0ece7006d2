"""Gradients in another memory layout than the result: copied into its layout, which is told.

Sums round by the layout of what they add up. What is compared with is the original in eager.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.slow import default_only

COPIED = "FB0918.*is copied before the backward"
OPTIONS: dict[str, Any] = {"planner": "store-all", "costs": "roofline", "device": "cpu"}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv": (lambda: nn.Conv2d(4, 5, 1), (2, 4, 8, 8)),
    "conv 1d": (lambda: nn.Conv1d(4, 6, 3), (3, 4, 33)),
    "linear": (lambda: nn.Linear(8, 16), (33, 8)),
    "batch norm": (lambda: nn.BatchNorm2d(6), (3, 6, 7, 9)),
}


def expanded(y: Tensor) -> Tensor:
    return torch.randn(*y.shape[:-1], 1).expand(y.shape)


def transposed(y: Tensor) -> Tensor:
    return torch.randn(y.transpose(0, -1).shape).transpose(0, -1)


def strided(y: Tensor) -> Tensor:
    return torch.randn(*y.shape[:-1], 2 * y.shape[-1])[..., ::2]


LAYOUTS = (expanded, transposed, strided)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def both(model: nn.Module, ours: nn.Module, step: Callable[[nn.Module], None]) -> None:
    """Gradients of `ours`, bit for bit those of `model` in eager."""
    step(ours)
    step(model)
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_is_copied_into_the_layout_of_its_result(
    name: str, layout: Callable[[Tensor], Tensor]
) -> None:
    """So it computes what eager computes of a gradient in that layout."""
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    ours = remat_compile.compile(copy.deepcopy(model), (x,), **OPTIONS)
    y = copy.deepcopy(model)(x)
    gradient = layout(y)
    with pytest.warns(UserWarning, match=COPIED):
        ours(x).backward(gradient)
    model(x).backward(torch.empty_like(y).copy_(gradient))
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def summed(y: Tensor) -> Tensor:
    return y.sum()


def averaged(y: Tensor) -> Tensor:
    return y.mean()


def squared(y: Tensor) -> Tensor:
    return y.square().mean()


def last(y: Tensor) -> Tensor:
    return y[:, -1].square().sum()


@pytest.mark.parametrize("loss", default_only([summed, averaged, squared, last], [summed, last]))
@pytest.mark.parametrize("name", MODELS)
def test_ordinary_losses_have_the_bits_of_eager_and_no_word(
    name: str, loss: Callable[[Tensor], Tensor]
) -> None:
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    ours = remat_compile.compile(copy.deepcopy(model), (x,), **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both(model, ours, lambda m: loss(m(x)).backward())


class Returned(nn.Module):
    """Returns one tensor several times: autograd adds what comes to it, in eager's own order."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.times = times

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.tanh(self.b(torch.tanh(self.a(x)))),) * self.times


@pytest.mark.parametrize("times", [2, 3])
def test_gradients_of_a_tensor_that_is_returned_again(times: int) -> None:
    model, x = Returned(times), torch.randn(16, 8)
    ours = remat_compile.compile(copy.deepcopy(model), (x,), **OPTIONS)
    gradients = [torch.randn(16, 8) for _ in range(times)]
    both(model, ours, lambda m: torch.autograd.backward(m(x), gradients))


def test_the_copy_is_told_once() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.randn(3, 33, 8)
    ours = remat_compile.compile(copy.deepcopy(model), (x,), **OPTIONS)
    with pytest.warns(UserWarning, match=COPIED):
        ours(x).backward(transposed(torch.empty(3, 33, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(x).backward(transposed(torch.empty(3, 33, 16)))
        ours(x).square().sum().backward()


def test_with_dynamic_sizes_the_copy_is_told() -> None:
    model, x = nn.Conv2d(4, 5, 1), torch.randn(2, 4, 8, 8)
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    ours = remat_compile.compile(model, (x,), dynamic_shapes=shapes, **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(x).square().sum().backward()
    with pytest.warns(UserWarning, match=COPIED):
        ours(x).backward(transposed(torch.empty(2, 5, 8, 8)))


class Segments(nn.Module):
    """Returns its loss, and behind it what the loss was computed from, in another layout than the
    gradient that comes to it there."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        made = self.head(self.body(x).contiguous(memory_format=torch.channels_last))
        wide = nn.functional.interpolate(made.contiguous(), size=(16, 16), mode="bilinear")
        return nn.functional.cross_entropy(wide, y), made


def segments() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return Segments(), (torch.randn(2, 3, 8, 8), torch.randint(0, 5, (2, 16, 16)))


def test_what_the_loss_does_not_use_has_no_layout() -> None:
    """AOTAutograd gives zeros in the layout of the result; a sum with them had that layout."""
    model, args = segments()
    ours = remat_compile.compile(copy.deepcopy(model), args, **OPTIONS)
    both(model, ours, lambda m: m(*args)[0].backward())


def test_what_the_loss_of_a_region_does_not_use_has_no_layout() -> None:
    model, args = segments()
    options = {"activation_budget": "100%", "planner": "store-all"}
    ours = torch.compile(copy.deepcopy(model), backend="remat", options=options)
    both(model, ours, lambda m: m(*args)[0].backward())


def test_a_region_is_named_where_a_gradient_is_copied() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.randn(3, 33, 8)
    options = {"activation_budget": "100%", "planner": "store-all"}
    ours = torch.compile(copy.deepcopy(model), backend="remat", options=options)
    with pytest.warns(UserWarning, match=r"FB0918.*result 0 of region 1"):
        ours(x).backward(transposed(torch.empty(3, 33, 16)))


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_backwards_on_several_threads_know_their_own_layouts(many_switches: None) -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.randn(3, 33, 8)
    ours = remat_compile.compile(model, (x,), **OPTIONS)
    parameters = list(ours.parameters())
    wrong: list[object] = []

    def run(gradient: Tensor, expected: tuple[Tensor, ...]) -> None:
        for _ in range(60):
            try:
                actual = torch.autograd.grad(ours(x), parameters, gradient)
            except RuntimeError as error:
                wrong.append(error)
                continue
            wrong.extend(a for a, b in zip(actual, expected, strict=True) if not torch.equal(a, b))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients = [torch.randn(3, 33, 16), *(of(torch.empty(3, 33, 16)) for of in LAYOUTS)]
        known = [(g, torch.autograd.grad(ours(x), parameters, g)) for g in gradients]
        threads = [threading.Thread(target=run, args=one) for one in known]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


# -- Gradients of views that a step returns -------------------------------------------------------


class DetachedView(nn.Module):
    """Returns a view of a result, without its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return y, y.detach()[0]


def test_a_detached_view_of_a_result_has_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_COMPILE_CACHE", str(tmp_path))
    x = torch.ones(3, 4)
    for _ in range(2):  # captured, and started again
        compiled = remat_compile.compile(DetachedView(), (x,), activation_budget="100%")
        y, part = compiled(x)
        assert (y.requires_grad, part.requires_grad) == (True, False)
        assert part.data_ptr() == y.data_ptr()
        part.mul_(2)  # of what autograd knows nothing
        assert y.detach()[0].equal(part)
