"""Results are traced in the layout that real kernels give them, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import remat_compile
from helpers.execution import captures
from helpers.slow import default_only
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.torch import build, measure_step
from remat_compile.capture.torch import kernel_orders, laid_out_by_kernels
from remat_compile.ir.diagnostics import FBError

Function = Callable[[Tensor], Tensor]


class Transposed(nn.Module):
    """Something on channels between linear layers over them, as in time series models."""

    def __init__(self, inner: nn.Module | Function, *, is_viewed: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.inner = nn.Linear(8, 8), nn.Linear(8, 8), inner
        self.is_viewed = is_viewed

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(self.a(x).transpose(1, 2))
        if self.is_viewed:  # eager allows it, of a contiguous result
            y = y.view(x.shape[0], -1).view(x.shape[0], 8, x.shape[1])
        return self.b(y.transpose(1, 2))


SERIES = torch.linspace(-1, 1, 4 * 5 * 8).reshape(4, 5, 8)
INNER: dict[str, Callable[[], nn.Module | Function]] = {
    "batch_norm": lambda: nn.BatchNorm1d(8),
    "logsigmoid": lambda: F.logsigmoid,
    "pow": lambda: lambda t: 2**t,
    "log_softmax": lambda: lambda t: F.log_softmax(t, 1),
    "layer_norm": lambda: lambda t: F.layer_norm(t, (5,)),
}


@pytest.mark.parametrize("name", INNER)
def test_what_is_reshaped_behind_a_transposed_operand(name: str) -> None:
    model = Transposed(INNER[name]()).train()
    eager = copy.deepcopy(model)
    ours = remat_compile.compile(model, (SERIES,), activation_budget="100%", planner="dtr")
    assert_bit_equal(train_steps(eager, (SERIES,)), train_steps(ours, (SERIES,)))


def test_a_view_that_eager_allows_is_captured() -> None:
    model = Transposed(nn.BatchNorm1d(8), is_viewed=True).train()
    eager = copy.deepcopy(model)
    ours = remat_compile.compile(model, (SERIES,), activation_budget="100%", planner="dtr")
    assert_bit_equal(train_steps(eager, (SERIES,)), train_steps(ours, (SERIES,)))


def test_dynamic_sizes_are_laid_out_so_too() -> None:
    model = Transposed(nn.BatchNorm1d(8)).train()
    eager = copy.deepcopy(model)
    shapes = ({0: torch.export.Dim("batch", min=2, max=8)},)
    ours = remat_compile.compile(
        model, (SERIES,), activation_budget="100%", planner="dtr", dynamic_shapes=shapes
    )
    for x in (SERIES, SERIES[:3].contiguous()):
        assert_bit_equal(train_steps(eager, (x,)), train_steps(ours, (x,)))


def test_the_bound_holds_for_what_is_copied_then() -> None:
    torch.manual_seed(0)
    layers = [Transposed(nn.BatchNorm1d(8)) for _ in range(4)]
    model, x = nn.Sequential(*layers).train(), torch.randn(32, 64, 8)
    asked = {"budget": "range:0.7", "costs": "measured", "planner": "dtr"}
    with captures.planned(model, (x,), {}, **asked) as (plan, lowered):
        compiled = build(lowered.with_program(plan.program), plan.schedule)
    compiled(x).square().mean().backward()
    for p in compiled.parameters():
        p.grad = None
    use = measure_step(compiled, (x,), {})
    assert plan.proven is not None
    assert max(use.forward_measured_bytes, use.backward_measured_bytes) <= plan.proven.device_bytes


def test_a_model_without_values_may_be_larger_than_this_machine() -> None:
    """Of calls on more bytes than that, what tracing says stands."""
    op, given = torch.ops.aten.pow.Scalar, torch.empty(7, 11).t()
    nbytes = given.numel() * given.element_size()
    for at_most, is_tried in ((nbytes - 1, False), (nbytes, True), (nbytes - 1, True)):
        orders = kernel_orders(op, (2, given), {}, given, at_most)
        assert bool(orders) == is_tried  # and then it is known


# -- every operator of a list, in every layout -----------------------------------------------


def _expanded(t: Tensor) -> Tensor:
    return t[:1].expand(t.shape)


LAYOUTS: dict[str, Function] = {
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "reversed": lambda t: t.mT.contiguous().mT if t.dim() == 2 else _reversed(t),
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "expanded": _expanded,
    "gaps": lambda t: torch.cat([t, t], -1)[..., ::2],
}


def _reversed(t: Tensor) -> Tensor:
    back = tuple(range(t.dim()))[::-1]
    return t.permute(back).contiguous().permute(back)


def _norm(t: Tensor) -> Tensor:
    c = t.shape[1]
    return F.batch_norm(t, torch.zeros(c), torch.ones(c), torch.ones(c), torch.ones(c), True)


FUNCTIONS: dict[str, Function] = {
    **{
        name: getattr(F, name)
        for name in (
            *("relu", "gelu", "silu", "hardswish", "leaky_relu", "elu", "softplus", "mish"),
            *("hardtanh", "logsigmoid", "hardsigmoid", "selu", "relu6", "celu", "softsign"),
            *("softshrink", "hardshrink", "tanhshrink", "normalize"),
        )
    },
    **{
        name: getattr(torch, name)
        for name in (
            *("exp", "tanh", "sigmoid", "sin", "erf", "abs", "neg", "square", "cumsum_"),
            *("log1p", "clone", "tril", "triu", "flip_", "sqrt", "rsqrt", "reciprocal"),
        )
        if not name.endswith("_")
    },
    "softmax": lambda t: F.softmax(t, 1),
    "log_softmax": lambda t: F.log_softmax(t, -1),
    "batch_norm": _norm,
    "layer_norm": lambda t: F.layer_norm(t, t.shape[-2:]),
    "group_norm": lambda t: F.group_norm(t, 2),
    "instance_norm": lambda t: F.instance_norm(t),
    "dropout": lambda t: F.dropout(t, 0.5),
    "glu": lambda t: F.glu(t, 1),
    "conv2d": lambda t: F.conv2d(t, torch.ones(2, t.shape[1], 2, 2, requires_grad=True)),
    "linear": lambda t: F.linear(t, torch.ones(3, t.shape[-1], requires_grad=True)),
    "matmul": lambda t: t @ t.mT,
    "max_pool2d": lambda t: F.max_pool2d(t, 2),
    "avg_pool2d": lambda t: F.avg_pool2d(t, 2),
    "adaptive_avg_pool2d": lambda t: F.adaptive_avg_pool2d(t, 2),
    "interpolate": lambda t: F.interpolate(t, scale_factor=2.0),
    "bilinear": lambda t: F.interpolate(t, scale_factor=2.0, mode="bilinear"),
    "pad": lambda t: F.pad(t, (1, 1)),
    "reflect": lambda t: F.pad(t, (1, 1, 1, 1), mode="reflect"),
    "replicate": lambda t: F.pad(t, (1, 1, 1, 1), mode="replicate"),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t, 2),
    "unfold": lambda t: F.unfold(t, 2),
    "sum": lambda t: t.sum(1),
    "mean": lambda t: t.mean((-1,), keepdim=True),
    "var": lambda t: t.var(1),
    "amax": lambda t: t.amax(1),
    "logsumexp": lambda t: t.logsumexp(1),
    "cumsum": lambda t: t.cumsum(1),
    "cumprod": lambda t: t.cumprod(1),
    "cat": lambda t: torch.cat([t, t.contiguous()], 1),
    "stack": lambda t: torch.stack([t, t], 1),
    "where": lambda t: torch.where(t > 0, t, 0.0),
    "masked_fill": lambda t: t.masked_fill(t > 0, 0.0),
    "gather": lambda t: t.gather(1, torch.zeros_like(t, dtype=torch.long)),
    "index_select": lambda t: t.index_select(1, torch.tensor([0, 1])),
    "index": lambda t: t[:, torch.tensor([0, 1])],
    "roll": lambda t: t.roll(1, 1),
    "flip": lambda t: t.flip(1),
    "repeat": lambda t: t.repeat(1, 1, 2, 2),
    "sort": lambda t: t.sort(1)[0],
    "topk": lambda t: t.topk(2, 1)[0],
    "clamp": lambda t: t.clamp(-1, 1),
    "maximum": lambda t: torch.maximum(t, t.contiguous()),
    "addcmul": lambda t: torch.addcmul(t, t, t.contiguous()),
    "lerp": lambda t: torch.lerp(t, t.contiguous(), 0.3),
    "pow": lambda t: t**3,
    "pow_scalar": lambda t: 2**t,
    "div": lambda t: t / (1 + t.square()),
    "div_mode": lambda t: torch.div(t, torch.tensor(2.0), rounding_mode="floor"),
    "mse": lambda t: F.mse_loss(t, t.detach().contiguous(), reduction="none"),
    "smooth_l1": lambda t: F.smooth_l1_loss(t, t.detach().contiguous() + 1, reduction="none"),
    "huber": lambda t: F.huber_loss(t, t.detach().contiguous() + 1, reduction="none"),
    "bce": lambda t: F.binary_cross_entropy_with_logits(t, t.detach() * 0 + 0.5, reduction="none"),
    "kl": lambda t: F.kl_div(t, t.detach().contiguous(), reduction="none"),
    "attention": lambda t: F.scaled_dot_product_attention(t, t, t),
    "einsum": lambda t: torch.einsum("bchw,bdhw->bcd", t, t),
    "cdist": lambda t: torch.cdist(t, t + 1),
    "to": lambda t: t.to(torch.float64),
    "contiguous": lambda t: t.contiguous(),
    "tril": lambda t: t.tril(),
}


class Differing(TorchDispatchMode):
    """Runs each operator, and notes those that `FakeTensorMode` lays out otherwise."""

    def __init__(self, *, is_laid_out: bool) -> None:
        super().__init__()
        self.is_laid_out = is_laid_out
        self.differing: set[str] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        mode = FakeTensorMode()

        def fake(t: Tensor) -> Tensor:
            with mode:
                return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)

        given, named = tree_map_only(Tensor, fake, (args, kwargs))
        laid_out = laid_out_by_kernels(mode, has_values=True) if self.is_laid_out else nullcontext()
        with mode, laid_out:
            traced = func(*given, **named)
        real = func(*args, **kwargs)
        for one, other in zip(tree_leaves(real), tree_leaves(traced), strict=True):
            if isinstance(one, Tensor) and _strides(one) != _strides(other):
                self.differing.add(str(func))
        return real


def _strides(t: Tensor) -> list[int]:
    return [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def differing(
    function: Function, layout: str, gradient_layout: str, *, is_laid_out: bool = True
) -> set[str]:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 6, 6)
    leaf = LAYOUTS[layout](x).detach().requires_grad_()
    with Differing(is_laid_out=is_laid_out) as seen:
        made = function(leaf)
        if made.dim() == 4:
            gradient = LAYOUTS[gradient_layout](torch.randn(made.shape))
        else:
            gradient = torch.randn(made.shape)
        torch.autograd.grad(made, leaf, gradient, allow_unused=True)
    return seen.differing


@pytest.mark.parametrize("name", default_only(FUNCTIONS, [*FUNCTIONS][::4]))
def test_operators_are_traced_as_real_kernels_lay_them_out(name: str) -> None:
    for layout in LAYOUTS:
        for of_gradient in ("transposed", "channels_last", "gaps"):
            case = layout, of_gradient
            assert not differing(FUNCTIONS[name], *case), case


def test_without_that_they_are_not() -> None:
    """Where PyTorch has put this right, `kernel_strides` can go."""
    wrong = differing(_norm, "transposed", "channels_last", is_laid_out=False)
    wrong |= differing(FUNCTIONS["pow_scalar"], "transposed", "channels_last", is_laid_out=False)
    assert "aten.native_batch_norm.default" in wrong
    assert "aten.pow.Scalar" in wrong


def test_a_kernel_that_reads_a_workspace_is_not_run_on_zeros() -> None:
    """The backward of an LSTM by oneDNN ends the process where its workspace is zeros."""
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 8, batch_first=True)
    x = torch.randn(3, 5, 4)
    with pytest.raises(FBError, match="FB0520"):
        remat_compile.compile(lstm, (x,), activation_budget="100%")
