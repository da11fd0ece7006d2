"""The gradient of a loss by labels, taken into the kernel of that of `log_softmax`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import remat_compile
from helpers.fused_plans import check_step, needs_compiler
from remat_compile.backends.torch.kernels.inductor import Layout, compile_traced, trace
from remat_compile.ir.graph import Graph

_ATEN = torch.ops.aten


def _operator(scores: Tensor) -> object:
    return _ATEN.nll_loss2d_backward if scores.dim() == 4 else _ATEN.nll_loss_backward


def _kernel(
    args: tuple[Tensor, ...], is_weighted: bool, reduction: int, ignored: int
) -> tuple[Tensor, ...]:
    """What a kernel of both gradients gives for the gradient of the loss, logarithms, labels, their
    total weight and maybe weights."""
    backward = _operator(args[1])

    def both(g: Tensor, y: Tensor, labels: Tensor, total: Tensor, *w: Tensor) -> tuple[Tensor, ...]:
        weight = w[0] if is_weighted else None
        made = backward(g, y, labels, weight, reduction, ignored, total)  # type: ignore[operator]
        dim = 0 if y.dim() == 1 else 1
        return (_ATEN._log_softmax_backward_data(made, y, dim, y.dtype),)

    traced = trace(both, [Layout.of(t) for t in args])
    assert traced.is_generated
    compiled = compile_traced(traced).kernel()
    return tuple(compiled([*args]))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "reduction", "is_weighted", "label_type"),
    [
        ((24, 40), "mean", False, torch.int64),
        ((24, 40), "mean", True, torch.uint8),
        ((24, 40), "sum", True, torch.int64),
        ((24, 40), "none", True, torch.int64),
        ((40,), "mean", False, torch.int64),
        ((40,), "none", True, torch.int64),
        ((2, 5, 3, 4), "mean", True, torch.int64),
        ((2, 5, 3, 4), "none", False, torch.int64),
    ],
)
@pytest.mark.parametrize("ignored", [-100, 1])
def test_gradients_are_those_of_eager(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    reduction: str,
    is_weighted: bool,
    label_type: torch.dtype,
    ignored: int,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    dim = 0 if x.dim() == 1 else 1
    classes = shape[dim]
    of_labels = shape[:dim] + shape[dim + 1 :]
    labels = torch.randint(2, classes, of_labels).to(label_type)
    labels.view(-1)[::3] = 1
    if x.dim() == 1:
        labels = torch.tensor(2)  # not ignored
    weight = torch.rand(classes, dtype=dtype) + 0.5 if is_weighted else None
    y = x.log_softmax(dim)
    loss = F.nll_loss(y, labels, weight, ignore_index=ignored, reduction=reduction)
    g = torch.randn_like(loss)
    (wanted,) = torch.autograd.grad(loss, x, g)
    held = labels != ignored
    shares = torch.ones(of_labels, dtype=dtype) if weight is None else weight[labels.long()]
    args = (g, y.detach(), labels, (shares * held).sum(), *(() if weight is None else (weight,)))
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    (made,) = _kernel(args, is_weighted, number, ignored)
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    assert (made - wanted).abs().max() <= limit * wanted.abs().max()


@needs_compiler
def test_where_every_label_is_ignored_the_gradient_is_0() -> None:
    y = torch.randn(8, 16).log_softmax(1)
    labels = torch.full((8,), -100)
    (made,) = _kernel((torch.tensor(1.0), y, labels, torch.tensor(0.0)), False, 1, -100)
    assert not made.any()


@needs_compiler
@pytest.mark.parametrize("label", [-1, 16, 1 << 40])
def test_a_label_out_of_range_touches_no_other_place(label: int) -> None:
    """Eager's forward raises an error for it before."""
    y = torch.randn(8, 16).log_softmax(1)
    labels = torch.arange(8)
    labels[3] = label
    with pytest.raises(IndexError):
        F.nll_loss(y, labels)
    (made,) = _kernel((torch.tensor(1.0), y, labels, torch.tensor(8.0)), False, 1, -100)
    assert not made[3].any()
    assert made[[0, 1, 2, 4, 5, 6, 7]].all()


class Labelled(torch.nn.Module):
    """More classes than anything else, as a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(16, 512)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.a(x), labels)


def _regions(graph: Graph) -> list[set[str]]:
    return [{inner.call.op for inner in c.call.region} for c in graph.cnodes if c.is_fused]


@needs_compiler
def test_a_step_holds_one_gradient_of_the_classes_less() -> None:
    torch.manual_seed(0)
    model, x, labels = Labelled(), torch.randn(256, 16), torch.randint(0, 512, (256,))
    plan, unfused = (
        remat_compile.plan(model, (x, labels), planner="store-all", fuse=way)
        for way in ("inductor", "none")
    )
    pair = {"aten.nll_loss_backward.default", "aten._log_softmax_backward_data.default"}
    assert any(pair <= region for region in _regions(plan.graph))
    of_classes = 256 * 512 * 4  # three of them are alive at once without
    assert 3 * of_classes <= unfused.peak_bytes
    assert 2 * of_classes <= plan.peak_bytes < 2.2 * of_classes
    check_step(plan, 1e-5)
    with pytest.raises(IndexError):
        plan.bind()(x, labels + 512)
