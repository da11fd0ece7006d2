"""A step in a node of its own, where it needs nothing of AOTAutograd's wrappers, and in those."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import PlannedModule, build
from remat_compile.backends.torch.calls.arguments import Arguments
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class TwoHeads(nn.Module):
    """Two results, a buffer that each step writes, and a parameter that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.still = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(x) * self.still.detach()
        return self.a(h).sin(), self.b(h.cos()).sin()


class Views(nn.Module):
    """Two results that lie in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x).sin()
        return y[:2], y[2:]


def built(model: nn.Module, x: Tensor = X) -> PlannedModule:
    with lower(export(model, (x,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


@pytest.fixture(params=["its own", "AOTAutograd's"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "AOTAutograd's":
        monkeypatch.setattr(
            "remat_compile.capture.trace.joint.Joint.wrappers", lambda self, _: self
        )
    elif not hasattr(torch.autograd.Function, "boxed_grads_call"):
        pytest.skip("this PyTorch holds gradients until a backward ends")
    return str(request.param)


def is_own(step: PlannedModule) -> bool:
    return step.planned_step.flight.is_begun_by_node


def test_a_step_has_a_node_of_its_own_where_it_can(node: str) -> None:
    assert is_own(built(TwoHeads())) == (node == "its own")


def test_results_that_share_memory_are_left_to_aot_autograd() -> None:
    step = built(Views())
    assert not is_own(step)
    one, other = step(X)
    (one.sum() + other.square().sum()).backward()
    assert step.get_parameter("a.weight").grad is not None


class Passing(nn.Module):
    """Gives a part of what it was given, then a result of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:2], self.a(x).sin()


class Whole(Passing):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.a(x).sin()


@pytest.mark.parametrize("kind", [Passing, Whole])
@pytest.mark.parametrize(
    "used", [(0, 1), *(pytest.param(u, marks=pytest.mark.slow) for u in ((0,), (1,)))]
)
def test_the_node_of_an_earlier_step_is_not_taken_for_its_own(
    kind: type[Passing], used: tuple[int, ...], node: str
) -> None:
    """Of two steps one after the other, the second gives what the first has made."""
    first, second = TwoHeads(), kind()
    steps = built(copy.deepcopy(first)), built(copy.deepcopy(second), X.clone().requires_grad_())
    for one, other in ((first, second), steps):
        made = other(one(X)[0])
        torch.stack([made[at].square().sum() for at in used]).sum().backward()
    for step, eager in zip(steps, (first, second), strict=True):
        for ours, theirs in zip(step.parameters(), eager.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_and_buffers_are_those_of_eager(used: tuple[int, ...], node: str) -> None:
    """A gradient that never comes counts as zeros, and leaves None where it alone leads."""
    model = TwoHeads()
    step, eager = built(copy.deepcopy(model)), model
    for _ in range(2):
        for each in (step, eager):
            each.zero_grad()
            made = each(X)
            torch.stack([made[at].square().sum() for at in used]).sum().backward()
        for (name, ours), theirs in zip(step.named_parameters(), eager.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), name
            assert ours.grad is None or torch.equal(ours.grad, theirs.grad), name
        assert all(map(torch.equal, step.buffers(), eager.buffers()))


def test_a_parameter_without_gradient_keeps_its_edge(node: str) -> None:
    """What counts on hooks of every leaf (`DistributedDataParallel`) waits for it."""
    step = built(TwoHeads())
    grad_fn = step(X)[0].grad_fn
    assert grad_fn is not None
    leaves = [getattr(below, "variable", None) for below, _ in grad_fn.next_functions]
    assert any(leaf is step.still for leaf in leaves)


def test_no_second_derivative(node: str) -> None:
    step = built(TwoHeads())
    with pytest.raises(FBError) as refused:
        torch.autograd.grad(step(X)[0].sum(), [step.get_parameter("a.bias")], create_graph=True)
    assert refused.value.diagnostics[0].code == "FB0949"


def test_a_kept_graph_gives_the_same_again(node: str) -> None:
    step = built(TwoHeads())
    loss = step(X)[0].sum()
    once = torch.autograd.grad(loss, [step.get_parameter("a.weight")], retain_graph=True)
    again = torch.autograd.grad(loss, [step.get_parameter("a.weight")])
    assert torch.equal(once[0], again[0])
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, [step.get_parameter("a.weight")])


def test_a_node_of_its_own_is_given_no_hook(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = built(TwoHeads())
    hooked: list[Any] = []
    kind: Any = type(step(X)[0].grad_fn)
    register = kind.register_prehook

    def counted(self: Any, hook: Any) -> Any:
        hooked.append(hook)
        return register(self, hook)

    monkeypatch.setattr(kind, "register_prehook", counted, raising=False)
    step(X)[0].sum().backward()
    assert len(hooked) == (node != "its own")


# -- arguments -------------------------------------------------------------------------


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def forward(x: Any, y: Any = None, *, z: Any = None) -> None:
    """What the calls below are calls of."""


@pytest.mark.parametrize(("args", "kwargs"), [call(X), call(X, X), call(X, z=X), call(x=X, y=X)])
def test_plain_tensors_are_leaves_in_the_order_of_the_tree(args: Any, kwargs: Any) -> None:
    arguments = Arguments(forward, args, kwargs)
    flat = arguments.flat(args, kwargs)
    assert flat is not None
    assert all(map(lambda one, other: one is other, flat, tree_flatten((args, kwargs))[0]))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [call(X), call(X, [X]), call(X, None), call(X, nn.Parameter(X)), call(X, y=X), call(X, X, z=X)],
)
def test_other_calls_are_left_to_the_tree(args: Any, kwargs: Any) -> None:
    assert Arguments(forward, (X, X), {}).flat(args, kwargs) is None


def test_a_sample_of_more_than_tensors_is_left_to_the_tree() -> None:
    assert Arguments(forward, (X, [X]), {}).flat((X, X), {}) is None
