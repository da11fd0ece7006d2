"""Memory of the caller that a plan reads again, and tensors that share or hold memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.execution.run_again import RunAgain
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError

AGAIN: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}
X = torch.linspace(-1, 1, 24).reshape(4, 6)
TABLE = torch.linspace(0.5, 1.5, 6)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((6,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(torch.tanh(self.a(torch.relu(x))) * torch.sigmoid(self.scale))
        return made.square().sum()


def codes(seen: list[warnings.WarningMessage]) -> list[str]:
    return [code for w in seen for code in re.findall("FB[0-9]{4}", str(w.message))]


@pytest.mark.parametrize("name", ["scale", "b.weight", "args[0]"])
def test_what_was_written_to_is_named(name: str) -> None:
    model: Any
    model, x = remat_compile.compile(Scaled(), (X,), **AGAIN), X.clone()
    loss = model(x)
    with torch.no_grad():
        (x if name == "args[0]" else model.state_dict(keep_vars=True)[name]).add_(1)
    with pytest.raises(FBError, match=re.escape(f"FB0962]: {name} was written to between")):
        loss.backward()


def test_a_step_that_aotautograd_wraps_names_it_too() -> None:
    class Two(Scaled):
        def forward(self, x: Tensor) -> Any:
            made = torch.tanh(self.a(torch.relu(x))) * torch.sigmoid(self.scale)
            return made, made.t()

    model: Any = remat_compile.compile(Two(), (X,), **AGAIN)
    made, _ = model(X)
    model.scale.add_(1)
    with pytest.raises(FBError, match=r"FB0962\]: scale"):
        made.sum().backward()


def test_an_array_of_numpy_that_is_read_again_is_told_once() -> None:
    model = remat_compile.compile(Scaled(), (X,), **AGAIN)
    kept = remat_compile.compile(
        Scaled(), (X,), planner="store-all", costs="roofline", device="cpu"
    )
    given = torch.from_numpy(np.ones((4, 6), np.float32))
    for planned, expected in ((model, ["FB0960"]), (kept, [])):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            planned(X).backward()
            assert not codes(seen)
            for _ in range(2):
                planned(given).backward()
        assert codes(seen) == expected


def test_hooks_on_saved_tensors_are_told_once() -> None:
    model = remat_compile.compile(Scaled(), (X,), **AGAIN)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with torch.autograd.graph.save_on_cpu():
            model(X).backward()
        assert not codes(seen)
        for _ in range(2):
            with torch.autograd.graph.saved_tensors_hooks(Tensor.bfloat16, Tensor.float):
                model(X).backward()
    assert codes(seen) == ["FB0961"]


# -- what shares memory -----------------------------------------------------------------


class Shared(nn.Module):
    """Two layers whose weights, biases or buffers lie in one memory."""

    one: Tensor
    other: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        flat = torch.randn(12, 6)
        self.register_buffer("one", flat[0])
        self.register_buffer("other", flat[1] if how == "buffers" else torch.ones(6))
        if how == "rows":
            self.a.weight, self.b.weight = nn.Parameter(flat[:6]), nn.Parameter(flat[6:])
        elif how == "same":
            self.b.weight = nn.Parameter(self.a.weight.data)
        elif how == "transposed":
            self.b.weight = nn.Parameter(self.a.weight.data.t())
        elif how == "module and weight":
            self.c = self.a
            self.b.weight = self.a.weight
        elif how == "tied buffer":
            self.a.register_buffer("one", self.one)

    def forward(self, x: Tensor) -> Tensor:
        first: nn.Module = getattr(self, "c", self.a)
        made: Tensor = self.b(torch.tanh(first(x) * getattr(self.a, "one", self.one)))
        return (made * self.one + self.other).square().sum()


@pytest.mark.parametrize(
    "how", ["rows", "same", "transposed", "buffers", "module and weight", "tied buffer"]
)
def test_tensors_in_one_memory(how: str) -> None:
    steps = [
        train_steps(model, (X,), steps=3)
        for model in (remat_compile.compile(Shared(how), (X,), **AGAIN), Shared(how))
    ]
    assert_bit_equal(*steps)


# -- constants of a step ----------------------------------------------------------------


class Held(nn.Module):
    """Reads tensors that are no parameters and no buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(6, 6)
        self.position = torch.linspace(-1, 1, 36).reshape(6, 6).t()

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.position.chunk(2)
        made: Tensor = torch.tanh(self.a(x) * TABLE) @ self.position
        return (made.square().sum() + (made @ one.t() @ other).sum()) * self.position[None].sum()


def test_a_tensor_on_a_module_or_in_a_global_is_a_constant() -> None:
    ours = remat_compile.compile(Held(), (X,), **AGAIN)
    assert_bit_equal(*(train_steps(model, (X,), steps=2) for model in (ours, Held())))


def test_another_tensor_in_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = remat_compile.compile(Held(), (X,), **AGAIN)
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.TABLE", TABLE.clone())
        with pytest.raises(FBError, match=r"FB0910\]: .*TABLE"):
            model(X)
    model(X)
    model.position.add_(1)  # type: ignore[union-attr, operator]
    with pytest.raises(FBError, match=r"FB0910\]: .*position"):
        model(X)


def test_a_trained_tensor_that_is_no_parameter_is_refused() -> None:
    class Trained(Held):
        def __init__(self) -> None:
            super().__init__()
            self.position = torch.ones(6, requires_grad=True)

        def forward(self, x: Tensor) -> Tensor:
            return (self.a(x) * self.position).sum()

    with pytest.raises(FBError, match=r"FB0507\]: .*no parameter and no.*test_caller_memory"):
        remat_compile.compile(Trained(), (X,), **AGAIN)


# -- what eager checks, and numbers ------------------------------------------------------


class Of(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.function = nn.Linear(6, 6), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.a(x))


def complex_of(h: Tensor) -> Tensor:
    z = torch.view_as_complex(h.reshape(4, 3, 2).contiguous())
    return ((z * (2 - 0.001j) + 1j) * 1j).angle().sum() + torch.exp(1j * z.real).imag.sum()


def solved(h: Tensor) -> Tensor:
    square = h[:, :4] + 5 * torch.eye(4)
    return torch.linalg.solve(square, h).sum() + torch.linalg.inv(square).sum()


@torch.jit.script
def scripted(h: Tensor, w: Tensor) -> Tensor:
    return (torch.sigmoid(h + w) * h).sum()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (complex_of, []),
        (solved, ["FB0527"]),
        (lambda h: nn.functional.group_norm(h.t().reshape(1, 6, 2, 2), 2).square().sum(), []),
        (lambda h: scripted(h, h.detach()), ["FB0532"]),
    ],
    ids=["complex", "solved", "normalised", "scripted"],
)
def test_what_was_refused_is_planned(function: Callable[[Tensor], Tensor], told: list[str]) -> None:
    for _ in range(3):  # TorchScript changes its mind in its first calls
        train_steps(Of(function), (X,), steps=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ours = remat_compile.compile(Of(function), (X,), **AGAIN)
    assert [code for code in codes(seen) if code in ("FB0527", "FB0532")] == told
    if "FB0532" in told:  # bits are TorchScript's own
        assert any("test_caller_memory.py" in str(w.message) for w in seen)
        return
    steps = [train_steps(model, (X,), steps=2) for model in (ours, Of(function))]
    assert_bit_equal(*steps)


@pytest.mark.parametrize("blocks", ["one", "two", "uncached"])
def test_autocast_inside_of_a_forward(blocks: str) -> None:
    class Mixed(Of):
        def forward(self, x: Tensor) -> Tensor:
            cached = blocks != "uncached"
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
                x = torch.tanh(self.a(x))
                if blocks != "two":
                    return torch.tanh(self.a(x)).float().sum()
            with torch.autocast("cpu", torch.bfloat16):
                return torch.tanh(self.a(x)).float().sum()

    def model() -> nn.Module:
        return Mixed(lambda h: h)

    ours = remat_compile.compile(model(), (X,), **AGAIN)
    steps = [train_steps(each, (X,), steps=2) for each in (ours, model())]
    assert_bit_equal(*steps)
