"""A compiled module stands in for the original: same names, same behaviour, same errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.execution.run_again import RunAgain
from helpers.models import MODELS, SMALL
from helpers.training import assert_same_tensors, difference, outer_loss
from remat_compile import FBError

TIGHT: dict[str, Any] = {
    "budget": "range:0.6",
    "planner": "dtr",
    "costs": "roofline",
    "device": "cpu",
}


AGAIN: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}
"""For models too small to save anything."""


@cache
def shared(name: str) -> nn.Module:
    """A compiled module for all tests that leave no more behind than values and modes."""
    return compiled_anew(name)


def compiled_anew(name: str) -> nn.Module:
    ours, args, kwargs = MAKE[name](torch.float32)
    return remat_compile.compile(ours, args, kwargs, **TIGHT)


MAKE = {**MODELS, **SMALL}


def pair(
    name: str, compiled: Callable[[str], nn.Module] = shared
) -> tuple[nn.Module, nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A compiled module and an eager one with equal parameters of their own."""
    theirs, args, kwargs = MAKE[name](torch.float32)
    ours = compiled(name)
    ours.load_state_dict(theirs.state_dict())
    ours.zero_grad(set_to_none=True)
    return ours.train(), theirs, args, kwargs


def leaves(out: Any) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def backward(out: Any, **options: Any) -> None:
    torch.autograd.backward(outer_loss(leaves(out)), **options)


def grads(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in module.named_parameters()}


def buffers(module: nn.Module) -> dict[str, Tensor | None]:
    return dict(module.named_buffers())


def seeded(module: nn.Module, *args: Any, seed: int = 5, **kwargs: Any) -> Any:
    torch.manual_seed(seed)
    return module(*args, **kwargs)


def test_names_and_state_are_the_originals() -> None:
    original, args, kwargs = SMALL["gpt-flash"](torch.float32)
    compiled = remat_compile.compile(original, args, kwargs, **TIGHT)
    assert [n for n, _ in compiled.named_parameters()] == [
        n for n, _ in original.named_parameters()
    ]
    assert all(a is b for a, b in zip(compiled.parameters(), original.parameters(), strict=True))
    assert list(compiled.state_dict()) == list(original.state_dict())
    assert compiled.training


def test_loaded_state_is_used() -> None:
    compiled, eager, args, kwargs = pair("mlp")
    other = {name: value * 1.5 for name, value in eager.state_dict().items()}
    compiled.load_state_dict(other)
    eager.load_state_dict(other)
    ours, theirs = compiled(*args, **kwargs), eager(*args, **kwargs)
    assert torch.equal(ours, theirs)
    backward(ours)
    backward(theirs)
    assert_same_tensors(grads(compiled), grads(eager), "gradient of")


def test_buffers_are_the_originals() -> None:
    compiled, eager, args, kwargs = pair("resnet")
    held = dict(compiled.named_buffers())
    for _ in range(2):
        backward(compiled(*args, **kwargs))
        backward(eager(*args, **kwargs))
    assert_same_tensors(buffers(compiled), buffers(eager), "buffer")
    assert all(held[n] is b for n, b in compiled.named_buffers())


def test_no_grad_runs_the_original() -> None:
    compiled, eager, args, kwargs = pair("gpt-flash")
    with torch.no_grad():
        ours, theirs = seeded(compiled, *args, **kwargs), seeded(eager, *args, **kwargs)
    assert not ours.requires_grad
    assert torch.equal(ours, theirs)


def test_eval_without_gradients_is_the_originals() -> None:
    compiled, eager, args, kwargs = pair("resnet")
    compiled.eval()
    eager.eval()
    assert not any(part.training for part in compiled.modules())
    with torch.no_grad():
        assert torch.equal(compiled(*args, **kwargs), eager(*args, **kwargs))
    assert_same_tensors(buffers(compiled), buffers(eager), "buffer")


def test_inference_shape_may_differ() -> None:
    compiled, eager, (x,), _ = pair("mlp")
    with torch.no_grad():
        assert torch.equal(compiled(x[:5]), eager(x[:5]))


def test_gradient_flows_to_what_made_the_input() -> None:
    compiled, eager, (x,), kwargs = pair("two-inputgrad")
    gradients: list[Tensor | None] = []
    for module in (compiled, eager):
        scale = torch.full((12,), 1.25, requires_grad=True)
        out = leaves(module(x.detach() * scale, **kwargs))
        backward(out)
        gradients.append(scale.grad)
    assert difference(*gradients) is None


class Aliases(nn.Module):
    """Returns a value, a view of it, an input, a view of an input, and one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = torch.tanh(self.second(torch.relu(self.first(x))))
        return h, h[:, :2], x, x.view(-1), h.t()


def test_outputs_that_alias() -> None:
    x = torch.randn(5, 6)
    torch.manual_seed(0)
    ours = Aliases()
    torch.manual_seed(0)
    theirs = Aliases()
    compiled = remat_compile.compile(ours, (x,), **AGAIN)
    for module in (compiled, theirs):
        h, part, same, flat, turned = module(x)
        assert same.data_ptr() == x.data_ptr()
        assert flat.data_ptr() == x.data_ptr()
        assert part.data_ptr() == h.data_ptr() == turned.data_ptr()
        torch.autograd.backward((h * 2).sum() + part.square().sum() + turned.exp().sum())
    assert_same_tensors(grads(compiled), grads(theirs), "gradient of")


class Structured(nn.Module):
    """Takes and returns nested structures."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self, batch: dict[str, Tensor], scale: float, *, mask: Tensor | None = None
    ) -> dict[str, Any]:
        h = torch.sigmoid(self.layer(batch["x"])) * scale
        if mask is not None:
            h = h * mask
        return {"h": h, "parts": [h.sum(0), (batch["y"] + 1, None)]}


def test_nested_arguments_and_results() -> None:
    batch = {"x": torch.randn(3, 4), "y": torch.randn(2)}
    mask = torch.ones(3, 4)
    torch.manual_seed(0)
    ours = Structured()
    torch.manual_seed(0)
    theirs = Structured()
    compiled = remat_compile.compile(ours, (batch, 0.5), {"mask": mask}, **AGAIN)
    for module in (compiled, theirs):
        out = module(batch, 0.5, mask=mask)
        assert list(out) == ["h", "parts"]
        assert out["parts"][1][1] is None
        assert torch.equal(out["parts"][1][0], batch["y"] + 1)
        torch.autograd.backward(out["h"].sum() + out["parts"][0].square().sum())
    assert_same_tensors(grads(compiled), grads(theirs), "gradient of")
    with pytest.raises(FBError):
        compiled(batch, 0.75, mask=mask)
    with pytest.raises(FBError):
        compiled(batch, 0.5)


def refused(module: nn.Module, *args: Any, **kwargs: Any) -> str:
    """The message of the refusal, which has a code of the backend's range."""
    with pytest.raises(FBError) as caught:
        module(*args, **kwargs)
    assert caught.value.diagnostics[0].code.startswith("FB09")
    return caught.value.diagnostics[0].message


@pytest.mark.parametrize("part", [nn.Module, nn.BatchNorm2d])
def test_another_training_flag_is_refused(part: type[nn.Module]) -> None:
    compiled, _, args, kwargs = pair("resnet")
    next(m for m in compiled.modules() if isinstance(m, part)).eval()
    assert "training == True" in refused(compiled, *args, **kwargs)


def test_autocast_is_refused() -> None:
    compiled, _, args, kwargs = pair("mlp")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in refused(compiled, *args, **kwargs)


# -- A parameter that two planned modules share ---------------------------------------------------

OPTIONS: dict[str, Any] = {"activation_budget": "100%", "planner": "store-all"}
X = torch.linspace(-1, 1, 30).reshape(5, 6)


class Once(nn.Module):
    """Reads the weight that it shares once."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight + self.bias).tanh()


class Twice(Once):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.weight.t()


def together(one: nn.Module, other: nn.Module) -> None:
    made: Tensor = one(X).square().sum() + other(2 * X).sin().sum()
    made.backward()


def in_turn(one: nn.Module, other: nn.Module) -> None:
    one(X).square().sum().backward()
    other(2 * X).sin().sum().backward()


def once(kind: type[Once], *, planned: bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 6))
    one, other = kind(weight), kind(weight)
    if not planned:
        return one, other
    return (
        remat_compile.compile(one, (X,), **OPTIONS),
        remat_compile.compile(other, (X,), **OPTIONS),
    )


def trained(
    models: tuple[nn.Module, nn.Module], step: Callable[[nn.Module, nn.Module], None]
) -> list[Tensor]:
    """Gradients and parameters of three steps."""
    parameters = dict.fromkeys(p for model in models for p in model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    seen: list[Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        step(*models)
        seen += [p.grad.clone() for p in parameters if p.grad is not None]
        optimizer.step()
    return [*seen, *(p.detach().clone() for p in parameters)]


@pytest.mark.parametrize(("kind", "step"), [(Once, together), (Once, in_turn), (Twice, in_turn)])
def test_gradients_are_those_of_eager(
    kind: type[Once], step: Callable[[nn.Module, nn.Module], None]
) -> None:
    """Two terms have one sum; those of two backwards are added behind each other in eager too."""
    expected = trained(once(kind, planned=False), step)
    made = trained(once(kind, planned=True), step)
    assert len(made) == len(expected) == 3 * 3 + 3
    assert all(map(torch.equal, made, expected))
