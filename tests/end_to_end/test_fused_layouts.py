"""Fused plans of tensors that lie otherwise than in order, and of unusual types and sizes: the
gradients of eager within rounding, and those of the same plan unfused to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.clock import HANGS_S
from helpers.fused_plans import needs_compiler
from helpers.slow import default_only
from remat_compile.backends.torch.kernels import missing
from remat_compile.ir.diagnostics import FBError

pytestmark = pytest.mark.skipif(missing(torch.device("cpu")) is not None, reason="no C++ compiler")

Function = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, function: Function, w: Tensor) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.w, x)


def act(x: Tensor) -> Tensor:
    return torch.tanh(x) * torch.sigmoid(x) * 1.5 + x


def turned(w: Tensor, x: Tensor) -> Tensor:
    return act(act(x @ w).t()).sum(0).square().mean()


def sliced(w: Tensor, x: Tensor) -> Tensor:
    return act(act(x @ w)[3::2, 5::3]).exp().tanh().mean()


def alone(w: Tensor, x: Tensor) -> Tensor:
    return act(act(x * w) + x).float().mean()


def overlapping(w: Tensor, x: Tensor) -> Tensor:
    return act(act(x * w).unfold(1, 4, 2)).mean()


def strided_anew(w: Tensor, x: Tensor) -> Tensor:
    return act(act(x * w).as_strided((10, 8), (3, 5), 7)).mean()


def expanded(w: Tensor, x: Tensor) -> Tensor:
    return act(w.unsqueeze(1).expand(16, 8, 32) * x.expand(16, 8, 32)).mean()


def conjugated(w: Tensor, x: Tensor) -> Tensor:
    mine, other = (torch.view_as_complex(t.view(16, 16, 2)) for t in (x * w, x))
    return act((mine.conj() * other).imag).square().mean()


def of_nothing(w: Tensor, x: Tensor) -> Tensor:
    return act(act(x @ w)).sum() + act(w).sigmoid().mean()


def masked(w: Tensor, x: Tensor) -> Tensor:
    chosen = torch.where(x > 0, act(x * w), (x * w).exp().neg())
    return chosen.masked_fill(w > 0.5, 0.0).mean()


def of_integers(w: Tensor, x: Tensor) -> Tensor:
    return act(w * (x % 7).float() + (x // 3).float()).mean()


def of_bytes(w: Tensor, x: Tensor) -> Tensor:
    return act(w * (x >> 1).float() + (x * 3).float() / 255).mean()


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape)


CASES: dict[str, tuple[Function, tuple[int, ...], Callable[[], Tensor]]] = {
    "transposed": (turned, (16, 32), lambda: numbers(16, 64).t()),
    "batch of one": (turned, (16, 32), lambda: numbers(1, 16)),
    "offset": (sliced, (16, 32), lambda: numbers(70, 20)[6:, 4:]),
    "strided": (sliced, (16, 32), lambda: numbers(64, 32)[:, ::2]),
    "expanded": (alone, (16, 32), lambda: numbers(1, 32).expand(16, 32)),
    "expanded inside": (expanded, (16, 32), lambda: numbers(1, 1, 32)),
    "overlapping": (alone, (16, 32), lambda: numbers(64).as_strided((16, 32), (1, 1), 3)),
    "overlapping inside": (overlapping, (16, 32), lambda: numbers(16, 32)),
    "strided anew": (strided_anew, (16, 32), lambda: numbers(16, 32)),
    "conjugated": (conjugated, (16, 32), lambda: numbers(16, 32)),
    "empty": (of_nothing, (16, 32), lambda: numbers(0, 16)),
    "no dimensions": (alone, (), numbers),
    "masks": (masked, (16, 32), lambda: numbers(16, 32)),
    "integers": (of_integers, (16, 32), lambda: torch.randint(-50, 50, (16, 32))),
    "bytes": (of_bytes, (16, 32), lambda: torch.randint(0, 255, (16, 32), dtype=torch.uint8)),
    "float16": (alone, (16, 32), lambda: numbers(16, 32).half()),
    "bfloat16": (alone, (16, 32), lambda: numbers(32, 16).bfloat16().t()),
    "float64": (alone, (16, 32), lambda: numbers(16, 32).double()),
}
DEFAULT = ("overlapping", "masks")
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def stepped(module: nn.Module, net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    net.w.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a region that runs by its calls says so
        loss = module(x)
    loss.backward()
    assert net.w.grad is not None
    return loss.detach(), net.w.grad


@pytest.mark.parametrize("name", default_only(CASES, DEFAULT))
def test_a_fused_plan_has_the_gradients_of_eager(name: str) -> None:
    function, shape, make = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        x = make()
        dtype = x.dtype if x.is_floating_point() else torch.float32
        net = Net(function, torch.randn(shape).to(dtype))
    wanted = stepped(net, net, x)

    def bound(fuse: str) -> nn.Module:
        options: Any = {"planner": "store-all", "fuse": fuse, "time_limit_s": 30 * HANGS_S}
        plan = remat_compile.plan(net, (x,), cache=False, **options)
        assert any(c.is_fused for c in plan.graph.cnodes) is (fuse != "none")
        made: nn.Module = plan.bind()
        return made

    unfused = stepped(bound("none"), net, x)
    assert [*map(torch.equal, unfused, wanted)] == [True, True]
    for mine, theirs in zip(stepped(bound("inductor"), net, x), wanted, strict=True):
        largest = float(theirs.double().abs().max())
        assert float((mine.double() - theirs.double()).abs().max()) <= LIMITS[dtype] * largest
        assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())


# -- Kernels and tensors that lie in memory otherwise than they were made for ---------------------


class Scaled(nn.Module):
    """A parameter that kernels of the forward and of the backward read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4, 4, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.a(x) * self.scale
        return torch.tanh(h) * torch.sigmoid(h) + h


def results(model: nn.Module, owner: nn.Module, x: Tensor) -> list[Tensor | None]:
    owner.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(None if p.grad is None else p.grad.clone() for p in owner.parameters())]


@needs_compiler
def test_parameters_in_other_strides_are_refused() -> None:
    """`.data` at the same place, of the same length: a kernel would read it as it was before."""
    model, x = Scaled(), torch.randn(4, 4, 4, 4)
    with pytest.warns(UserWarning, match="FB0470"):
        step = remat_compile.compile(
            model, (x,), planner="store-all", fuse="inductor", progress=False
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = results(step, model, x)
    for made, wanted in zip(before, results(model, model, x), strict=True):
        torch.testing.assert_close(made, wanted)
    scale = model.scale.data
    for laid in (scale.transpose(0, 1), scale.permute(0, 3, 1, 2)):
        model.scale.data = laid
        with pytest.raises(FBError, match=r"FB0910.*scale stride mismatch"):
            step(x)
