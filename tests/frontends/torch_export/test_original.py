"""What is trained is the user's model: compared with it in eager, never with its export."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers import models
from helpers.slow import default_only
from remat_compile.capture.torch import check_against_eager, export, lower
from remat_compile.capture.torch.graph import build
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode, Replay
from remat_compile.ir.program import Program
from remat_compile.ir.text.printer import format_program
from remat_compile.plans.compare.graph import graph_differences
from remat_compile.plans.compare.step import compare_step


class Sign(torch.autograd.Function):
    """Straight through: the sign forward, the gradient as it comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 0.5


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]


class Net(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]):
        super().__init__()
        self.between = between
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.norm(self.first(x)))).square().mean()


def hooked(x: Tensor) -> Tensor:
    y = x * 1.0
    y.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    return y


def with_module_hook(net: Net) -> Net:
    net.norm.register_full_backward_hook(lambda _, grads, __: (grads[0] * 3,))
    return net


def tied(net: Net) -> Net:
    net.second.weight = net.first.weight
    return net


CASES: dict[str, Callable[[], Net]] = {
    "straight through": lambda: Net(Sign.apply),
    "gradient reversal": lambda: Net(Reversal.apply),
    "tensor hook": lambda: Net(hooked),
    "module hook": lambda: with_module_hook(Net(torch.tanh)),
    "tied, straight through": lambda: tied(Net(Sign.apply)),
}


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_original(case: str) -> None:
    torch.manual_seed(0)
    model, x = CASES[case](), torch.randn(16, 8)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    expected = gradients(model, x)
    model.load_state_dict(state)
    compiled = remat_compile.compile(model, (x,), activation_budget="100%", planner="store-all")
    made = gradients(compiled, x)
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in expected)


class Running(nn.Module):
    """Keeps a mean: written into its buffer, or put in the buffer's place."""

    mean: Tensor

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.linear, self.replaces = nn.Linear(4, 4), replaces
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.replaces:
            self.mean = 0.9 * self.mean + y.detach().mean(0)
        else:
            self.mean.mul_(0.9).add_(y.detach().mean(0))
        return (y * self.mean).sum()


@pytest.mark.parametrize("replaces", [True, False])
def test_buffers_that_the_forward_replaces_or_writes_into_are_kept(replaces: bool) -> None:
    torch.manual_seed(0)
    model, x = Running(replaces), torch.randn(3, 4)
    eager = copy.deepcopy(model)
    compiled = remat_compile.compile(model, (x,), activation_budget="100%", planner="store-all")
    for _ in range(3):
        mine, theirs = gradients(compiled, x), gradients(eager, x)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        assert torch.equal(model.mean, eager.mean)


def test_a_lost_buffer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compile.capture.trace.module._write_into", lambda *_, **__: None)
    with pytest.raises(FBError, match="FB0512") as refused:
        remat_compile.compile(
            Running(True), (torch.randn(3, 4),), activation_budget="100%", planner="store-all"
        )
    assert "buffer mean" in str(refused.value)


def test_a_buffer_replaced_by_one_of_another_shape_is_refused() -> None:
    class Grows(Running):
        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            self.mean = y.detach()
            return y.sum()

    with (
        pytest.raises(FBError, match="FB0508") as refused,
        lower(export(Grows(True), (torch.randn(3, 4),))),
    ):
        pass
    assert "mean" in str(refused.value)


def test_the_step_is_compared_with_the_model_and_not_with_its_export() -> None:
    """An export drops the custom backward, and would be told apart from the model."""
    torch.manual_seed(0)
    made = remat_compile.plan(
        Net(Sign.apply), (torch.randn(16, 8),), activation_budget="100%", planner="store-all"
    )
    assert made._exported is not None
    assert compare_step(made, made.bind(), made._exported, repeats=1).bit_equal


@pytest.mark.parametrize("name", default_only(models.FACTORIES, ["small-resnet-loss", "mlp-loss"]))
def test_a_model_on_meta_gives_the_graph_of_the_model_on_the_cpu(name: str) -> None:
    assert text(name, "meta") == text(name, "cpu")


def text(name: str, device: str) -> str:
    with torch.device(device):
        module, args, kwargs = models.FACTORIES[name](torch.float32)
    with lower(export(module, args, kwargs)) as lowered:
        return format_program(lowered.program)


def test_a_model_on_meta_is_planned_for_a_device_and_not_run() -> None:
    with torch.device("meta"):
        model, x = Net(torch.tanh), torch.randn(16, 8)
    made = remat_compile.plan(
        model, (x,), activation_budget="100%", costs="roofline", device="h200", planner="store-all"
    )
    assert any(c.phase == "bwd" for c in made.program.graph.cnodes)
    assert made.program.header.replays == "", "nothing was run, so nothing was compared"
    with pytest.raises(FBError, match="FB0516") as refused:
        remat_compile.compile(model, (x,), activation_budget="100%", planner="store-all")
    assert "meta" in str(refused.value)


def test_a_model_without_any_gradient_is_refused() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).detach() * x

    x = torch.randn(2, 4, requires_grad=True)
    with pytest.raises(FBError, match=r"FB0515.*Cut"), lower(export(Cut(), (x,))):
        pass


class ByBatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * (2 if grads[0].shape[0] > 6 else 3)


@pytest.mark.parametrize(("low", "right"), [(2, False), (7, True)])
def test_a_backward_that_is_another_for_other_sizes_is_refused(low: int, right: bool) -> None:
    model, x = Net(ByBatch.apply), torch.randn(16, 8)
    batch = {"x": {0: torch.export.Dim("batch", min=low, max=32)}}
    exported = export(model, (x,), dynamic_shapes=batch)
    if right:
        with lower(exported) as lowered:
            assert lowered.program.symbols[0].low == low
        return
    with pytest.raises(FBError, match=r"FB0519.*s0 > 6"), lower(exported):
        pass


# -- A replay form with another call is run at capture, and its bits are compared ------------------


def _model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()).train(), torch.randn(5, 4)


def _captured() -> Program:
    model, x = _model()
    exported = export(model, (x,))
    with lower(exported) as lowered:
        pass
    check_against_eager(exported, lowered.program, lowered.values())
    return lowered.program


def test_the_header_says_that_replay_forms_were_compared() -> None:
    assert _captured().header.replays == "compared"
    with lower(export(nn.Linear(4, 4), (torch.zeros(2, 4),))) as plain:
        assert plain.program.header.replays == ""


def test_a_replay_form_that_gives_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = build.replay_without_effect

    def wrong(*args: Any) -> Replay | None:
        form = right(*args)
        if form is None:
            return None
        *rest, eps = form.call.args
        return replace(form, call=replace(form.call, args=(*rest, 2 * eps)))  # type: ignore[operator]

    monkeypatch.setattr(build, "replay_without_effect", wrong)
    with pytest.raises(FBError) as refused:
        _captured()
    assert {d.code for d in refused.value.diagnostics} == {"FB0512"}
    assert "in place of aten._native_batch_norm" in refused.value.diagnostics[0].message


def _with_replay(made: Program, **fields: object) -> Program:
    def edited(c: CNode) -> CNode:
        if c.replay is None:
            return c
        return replace(c, replay=replace(c.replay, **fields))  # type: ignore[arg-type]

    cnodes = tuple(map(edited, made.graph.cnodes))
    return replace(made, graph=replace(made.graph, cnodes=cnodes))


def test_a_plan_is_bound_to_the_results_of_its_replay_forms() -> None:
    made = _captured()
    assert graph_differences(made, _captured()) == []
    c = next(c for c in made.graph.cnodes if c.replay is not None)
    assert c.replay is not None
    first, second, third = c.replay.writes
    swapped = _with_replay(made, writes=(first, third, second))
    assert graph_differences(swapped, made) == [f"the replay form of {c.name} differs"]


def test_one_and_true_are_different_arguments() -> None:
    made = _captured()
    c = next(c for c in made.graph.cnodes if c.replay is not None)
    args = tuple(1 if arg is True else arg for arg in c.call.args)
    cnodes = tuple(
        replace(c, call=replace(c.call, args=args)) if x is c else x for x in made.graph.cnodes
    )
    edited = replace(made, graph=replace(made.graph, cnodes=cnodes))
    assert edited == made
    assert graph_differences(edited, made) == [f"{c.name}: arguments differ"]
