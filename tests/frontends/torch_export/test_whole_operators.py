"""Operators that PyTorch takes apart while it traces, or that are not its own: eager's bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import remat_compile
from helpers.execution.run_again import RunAgain
from helpers.slow import default_only
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError
from remat_compile.capture.torch import ensure_trusted, export, lower

AGAIN: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}


class Resized(nn.Module):
    def __init__(self, **how: Any):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.how = nn.Conv2d(3, 4, 3), how

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), **self.how).square().mean()


IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 9).reshape(2, 3, 8, 9)
WAYS: tuple[dict[str, Any], ...] = (
    {"mode": "bilinear", "scale_factor": 2.0},
    {"mode": "nearest", "scale_factor": 2.0},
    {"mode": "bilinear", "size": (5, 11), "align_corners": True},
    {"mode": "bilinear", "size": (5, 4), "antialias": True},
    {"mode": "bicubic", "scale_factor": 1.5},
    {"mode": "bicubic", "size": (5, 11), "align_corners": True},
)


@pytest.mark.parametrize(
    "dtype", default_only([torch.float32, torch.float64], [torch.float32]), ids=str
)
@pytest.mark.parametrize("how", default_only(WAYS, [WAYS[1], WAYS[3], WAYS[4]]), ids=str)
def test_interpolation(how: dict[str, Any], dtype: torch.dtype) -> None:
    with lower(export(Resized(**how).to(dtype), (IMAGES.to(dtype),))) as lowered:
        called = {c.call.op for c in lowered.program.graph.cnodes}
    ensure_trusted(lowered)  # against the model in eager
    assert any("upsample" in op and not op.endswith("backward.default") for op in called)


def test_a_step_with_interpolation() -> None:
    ours = remat_compile.compile(Resized(**WAYS[0]), (IMAGES,), **AGAIN)
    steps = [train_steps(model, (IMAGES,), steps=2) for model in (ours, Resized(**WAYS[0]))]
    assert_bit_equal(*steps)


class Recurrent(nn.Module):
    def __init__(self, kind: str, **how: Any):
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(nn, kind)(6, 8, num_layers=2, dropout=0.2, **how)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)[0].square().mean()
        return made


SERIES = torch.linspace(-1, 1, 3 * 4 * 6).reshape(3, 4, 6)


def trusted(model: nn.Module, x: Tensor) -> None:
    with lower(export(model, (x,))) as lowered:
        pass
    ensure_trusted(lowered)


RECURRENT = [("LSTM", torch.float64), ("RNN", torch.float32), ("RNN", torch.float64)]


@pytest.mark.parametrize(("kind", "dtype"), default_only(RECURRENT, RECURRENT[2:]), ids=str)
def test_recurrent_layers(kind: str, dtype: torch.dtype) -> None:
    trusted(Recurrent(kind).to(dtype), SERIES.to(dtype))


def test_lstm_in_float32() -> None:
    with pytest.raises(FBError, match=r"mkldnn\.flags\(enabled=False\).*layer") as error:
        trusted(Recurrent("LSTM"), SERIES)
    assert [d.code for d in error.value.diagnostics] == ["FB0520"]
    with torch.backends.mkldnn.flags(enabled=False):
        ours = remat_compile.compile(Recurrent("LSTM"), (SERIES,), **AGAIN)
        steps = [train_steps(m, (SERIES,), steps=1) for m in (ours, Recurrent("LSTM"))]
    assert_bit_equal(*steps)


def test_gru_is_refused_by_name() -> None:
    with pytest.raises(FBError, match="layer: eager computes its gates in place") as error:
        trusted(Recurrent("GRU"), SERIES)
    assert [d.code for d in error.value.diagnostics] == ["FB0520"]


class TwoTowers(nn.Module):
    """The loss of CLIP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(6, 8, bias=False), nn.Linear(6, 8, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.image(x), self.text(y)
        x, y = (v / v.norm(p=2, dim=-1, keepdim=True) for v in (x, y))
        logits = torch.matmul(y, x.t()) * self.logit_scale.exp()
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def test_logit_scale() -> None:
    pair = SERIES[0], SERIES[1].flip(1)
    ours = remat_compile.compile(TwoTowers(), pair, **AGAIN)
    assert_bit_equal(*(train_steps(model, pair) for model in (ours, TwoTowers())))


@torch.library.custom_op("remat_test::smooth", mutates_args=())
def smooth(x: Tensor, scale: float) -> Tensor:
    return torch.tanh(x * scale)


@torch.library.custom_op("remat_test::smooth_backward", mutates_args=())
def smooth_backward(grad: Tensor, made: Tensor, scale: float) -> Tensor:
    return grad * (1 - made * made) * scale


@smooth.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


@smooth_backward.register_fake
def _(grad: Tensor, made: Tensor, scale: float) -> Tensor:
    return torch.empty_like(grad)


def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.scale = inputs[1]
    ctx.save_for_backward(output)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return smooth_backward(grad, ctx.saved_tensors[0], ctx.scale), None


smooth.register_autograd(backward, setup_context=setup)


class OwnOperator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(smooth(self.first(x), 0.7)).square().mean()


def test_operators_of_a_users_library() -> None:
    plan = remat_compile.plan(OwnOperator(), (SERIES,), planner=RunAgain())
    own = [c for c in plan.program.graph.cnodes if c.call.op.startswith("remat_test")]
    assert [c.call.op for c in own] == [
        "remat_test.smooth.default",
        "remat_test.smooth_backward.default",
    ]
    assert all(c.time_ns is not None and c.time_ns > 0 for c in own)
    model = OwnOperator()
    steps = [train_steps(m, (SERIES,)) for m in (plan.bind(copy.deepcopy(model), (SERIES,)), model)]
    assert_bit_equal(*steps)


class SplitTwice(nn.Module):
    """Takes one tensor apart in every layer, as rotary positions are (RoFormer)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.places = nn.Embedding(16, 8, _freeze=True)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            sin, cos = places.chunk(2, -1)
            both = (torch.stack([part, part], -1).flatten(-2) for part in (sin, cos))
            x = layer(x) * next(both) + x.flip(-1) * next(both)
        return x


@pytest.mark.parametrize("options", [AGAIN, {"planner": "dtr", "activation_budget": "100%"}])
def test_one_tensor_that_several_layers_take_apart(options: dict[str, Any]) -> None:
    model, x = SplitTwice(), torch.linspace(-1, 1, 80).reshape(2, 5, 8)
    eager = copy.deepcopy(model)
    ours = remat_compile.compile(model, (x,), **options)
    assert_bit_equal(train_steps(eager, (x,)), train_steps(ours, (x,)))
