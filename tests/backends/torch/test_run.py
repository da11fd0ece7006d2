"""Running a plan: bit-equal, within its memory to the byte, and refusing other calls."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compile
from helpers.emitted.tiny import Tiny, replayable, schedule
from helpers.fused_plans import check_step, needs_compiler
from helpers.models import FACTORIES
from helpers.slow import default_only
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError
from remat_compile.backends.torch import GuardFailure, PlannedModule, build, measure_step
from remat_compile.backends.torch.kernels.inductor import Layout, compile_traced, trace
from remat_compile.capture.torch import export, lower
from remat_compile.costs import measured
from remat_compile.ir.graph import Graph


def planned(module: nn.Module, *args: Any, again: bool = True, **options: Any) -> PlannedModule:
    with lower(export(module, args, **options)) as lowered:
        program = lowered.program
        return build(lowered, schedule(program, replayable(program) if again else ()))


AGAIN = ["mlp", "resnet", "small-resnet", "unet", "two-inputgrad", "gpt-loss"]


@pytest.mark.parametrize("name", default_only(AGAIN, ["small-resnet", "two-inputgrad"]))
def test_recomputing_everything_is_bit_equal_and_measures_as_predicted(name: str) -> None:
    module, args, kwargs = FACTORIES[name](torch.float32)
    reference, same_args, same_kwargs = FACTORIES[name](torch.float32)
    exported = export(module, args, kwargs)
    with lower(exported) as lowered:
        pass
    program = measured(lowered.program, lowered.values(), time_limit_s=0.2)
    plan = schedule(program, replayable(program))
    with lower(exported) as lowered:
        drop_in = build(lowered.with_program(program), plan)
    ours = train_steps(drop_in, args, kwargs)
    theirs = train_steps(reference, same_args, same_kwargs)
    assert_bit_equal(ours, theirs)
    use = measure_step(drop_in, args, kwargs)
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.backward_measured_bytes == use.backward_predicted_bytes


def test_dynamic_batches_share_one_plan() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    batch = torch.export.Dim("batch", min=2, max=16)
    drop_in = planned(module, torch.randn(3, 4), dynamic_shapes=({0: batch},))
    for size in (2, 5, 16):
        x = torch.randn(size, 4)
        ours = torch.autograd.grad(drop_in(x).square().sum(), list(drop_in.parameters()))
        theirs = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(GuardFailure, match=r"outside \[2, 16\]"):
        drop_in(torch.randn(17, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.randn(3, 4)), r"float32\[3, 4\].*the plan is for float32\[2, 4\]"),
        (lambda m: m(torch.randn(2, 4).double()), "float64"),
        (lambda m: m(torch.randn(1, 2, 4)), r"float32\[1, 2, 4\]"),
        (lambda m: m(torch.randn(2, 4), 1), "other arguments"),
        (lambda m: m(torch.randn(2, 4, requires_grad=True)), "requires grad"),
        (lambda m: (m.lin.requires_grad_(False), m(torch.randn(2, 4))), "requires_grad"),
        (lambda m: (m.register_module("lin", nn.Tanh()), m(torch.randn(2, 4))), "no longer holds"),
    ],
)
def test_a_call_the_plan_was_not_made_for(call: Any, message: str) -> None:
    drop_in = planned(Tiny(), torch.randn(2, 4))
    with pytest.raises(GuardFailure, match=message) as error:
        call(drop_in)
    assert {d.code for d in error.value.diagnostics} == {"FB0910"}


def test_a_second_forward_before_the_backward_is_warned_about_once() -> None:
    drop_in = planned(Tiny(), torch.randn(2, 4))
    first = drop_in(torch.randn(2, 4))
    with pytest.warns(UserWarning, match="second forward"):
        second = drop_in(torch.randn(2, 4))
    (first.sum() + second.sum()).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            drop_in(torch.randn(2, 4)).sum().backward()


def test_an_output_that_is_thrown_away_is_no_call_in_flight() -> None:
    drop_in = planned(Tiny(), torch.randn(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            drop_in(torch.randn(2, 4))


def test_parameters_edited_between_forward_and_backward_raise() -> None:
    drop_in = planned(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4))
    out = drop_in(torch.randn(2, 4))
    with torch.no_grad():
        next(iter(drop_in.parameters())).add_(1)
        list(drop_in.parameters())[2].add_(1)
    with pytest.raises(FBError, match=r"FB0962\]: 0.weight, 1.weight"):
        out.sum().backward()


# -- The gradient of a loss by labels, taken into the kernel of that of `log_sof ------------------

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
@pytest.mark.parametrize("dtype", default_only([torch.float32, torch.float64], [torch.float32]))
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
@pytest.mark.parametrize("ignored", default_only([-100, 1], [1]))
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
