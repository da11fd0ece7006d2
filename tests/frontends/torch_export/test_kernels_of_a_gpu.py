"""What capture does for the sake of a GPU's kernels, shown where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compile.backends.torch import build as build_step
from remat_compile.capture.torch import check_against_eager, export, lower
from remat_compile.capture.torch import trust as check
from remat_compile.capture.torch.graph import build, prepare
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule


def _norms() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
    return model.train(), (torch.randn(2, 3, 6, 6),)


def test_batch_norm_in_the_form_that_takes_cudnn_is_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU that form runs the kernel that eager runs there; its replay needs a GPU."""
    monkeypatch.setattr(prepare, "_is_of_cudnn", lambda *_: True)
    captured = build.replay_without_effect
    monkeypatch.setattr(build, "replay_without_effect", lambda *_: None)
    model, args = _norms()
    exported = export(model, args)
    with lower(exported) as lowered:
        program, values = lowered.program, lowered.values()
    ops = [c.call.op for c in program.graph.cnodes]
    assert ops.count("aten._batch_norm_with_update_functional.default") == 2
    assert ops.count("aten.batch_norm_backward.default") == 2
    assert not any("native_batch_norm" in op for op in ops)
    check_against_eager(exported, program, values)
    first = next(c for c in program.graph.cnodes if "batch_norm_with_update" in c.call.op)
    replay = captured(
        torch.ops.aten._batch_norm_with_update_functional.default, first.call, first.writes
    )
    assert replay is not None
    assert replay.call.op == "aten.cudnn_batch_norm.default"
    assert replay.call.args[3:5] == (None, None)  # so that it changes no statistics
    assert replay.writes == first.writes[:4]


class _WithNumbers(torch.autograd.Function):
    """As attention on a GPU: beside tensors it gives numbers, and tensors that are none."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        y, n, none = torch.ops.remat_tests.with_numbers(x)
        ctx.save_for_backward(x)
        ctx.n, ctx.none = n, none
        return y

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return torch.ops.remat_tests.with_numbers_backward(grad, x, ctx.none, ctx.n)


@pytest.fixture(scope="module")
def operators():  # type: ignore[no-untyped-def]
    library = torch.library.Library("remat_tests", "DEF")
    library.define("with_numbers(Tensor x) -> (Tensor, SymInt, Tensor)")
    library.define("with_numbers_backward(Tensor g, Tensor x, Tensor? none, SymInt n) -> Tensor")

    def forward(x: Tensor) -> tuple[Tensor, int, None]:
        return x * x.shape[0], x.shape[0], None

    def backward(g: Tensor, x: Tensor, none: Tensor | None, n: int) -> Tensor:
        assert none is None
        return g * n

    for key in ("CPU", "Meta"):
        library.impl("with_numbers", forward, key)
        library.impl("with_numbers_backward", backward, key)
    yield
    library._destroy()


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = _WithNumbers.apply(self.inner(x))  # type: ignore[no-untyped-call]
        return made.tanh().square().sum()


def test_numbers_and_missing_tensors_among_results(operators: None) -> None:
    torch.manual_seed(0)
    exported = export(_Model(), (torch.randn(3, 4),))
    with lower(exported) as lowered:
        program, values = lowered.program, lowered.values()
        steps = frees_after_last_use(program.graph, capture_order(program.graph))
        build_step(lowered, Schedule("all", "", steps))
    made = next(c for c in program.graph.cnodes if c.call.op == "remat_tests.with_numbers.default")
    assert made.writes[1:] == (None, None)
    back = next(c for c in program.graph.cnodes if "backward" in c.call.op and "remat" in c.call.op)
    assert back.call.args[2:] == (None, 3)
    check_against_eager(exported, program, values)


def test_gradients_that_the_engine_holds_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before PyTorch 2.13: no plan frees them, and the bound has them until the end."""
    model, args = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.randn(3, 4),)

    def kinds() -> set[str]:
        program: Program
        with lower(export(model, args)) as lowered:
            program = lowered.program
        return {program.graph.anode[name].kind for name in program.graph.loss.results}

    assert kinds() == {"tangent"}
    monkeypatch.setattr(build, "HANDS_GRADIENTS_OVER", False)
    assert kinds() == {"output"}


def _noisy(monkeypatch: pytest.MonkeyPatch, whose: str, noise: list[float]) -> None:
    """Adds one of `noise` after the other to the gradients of the graph or of eager."""
    of, left = getattr(check, whose), iter(noise)

    def run(*args: object, **kwargs: object) -> dict[str, Tensor]:
        more = next(left)
        outputs: dict[str, Tensor] = of(*args, **kwargs)
        return {n: t + more if n.startswith("gradient") else t for n, t in outputs.items()}

    monkeypatch.setattr(check, whose, run)


def _checked() -> None:
    torch.manual_seed(0)
    exported = export(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.randn(3, 4),))
    with lower(exported) as lowered:
        pass
    check_against_eager(exported, lowered.program, lowered.values())


@pytest.mark.parametrize("whose", ["_of_graph", "eager_step"])
@pytest.mark.parametrize(
    "noise", [[1e-4, 0.0, 0.0, 0.0], [0.0, 0.0, 1e-4, 0.0], [1e-4, 1e-4, 1e-4, 0.0]]
)
def test_what_changes_from_run_to_run_is_told(
    monkeypatch: pytest.MonkeyPatch, whose: str, noise: list[float]
) -> None:
    _noisy(monkeypatch, whose, noise)
    if noise[0]:
        with pytest.warns(UserWarning, match=r"FB0919.*gradient of 0\.weight.* change from run"):
            _checked()
    else:
        _checked()  # one run of each was equal, and no more are made


@pytest.mark.parametrize("whose", ["_of_graph", "eager_step"])
def test_what_repeats_and_differs_is_refused(monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    _noisy(monkeypatch, whose, [1.0] * 9)
    with pytest.raises(FBError, match="FB0512"):
        _checked()


@pytest.mark.parametrize("noise", [1e4, float("nan"), float("inf")])
def test_what_changes_and_is_far_from_eager_is_refused(
    monkeypatch: pytest.MonkeyPatch, noise: float
) -> None:
    """As of a graph that reads what nothing wrote."""
    _noisy(monkeypatch, "_of_graph", [noise, 0.0, 0.0, 0.0])
    with pytest.raises(FBError, match="FB0512"):
        _checked()


def test_what_changes_as_far_in_eager_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _noisy(monkeypatch, "eager_step", [1e4, 0.0, 0.0, 0.0])
    with pytest.warns(UserWarning, match="FB0919"):
        _checked()


def test_batch_norm_without_weights_is_captured_for_a_gpu() -> None:
    """It is never cuDNN's, and PyTorch's question for the kernel takes no None."""
    with FakeTensorMode():
        x, mean = (torch.empty(*s, device="cuda") for s in ((2, 3, 4, 4), (3,)))
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in ("x", "mean", "variance")]
    for node, value in zip(nodes, (x, mean, mean), strict=True):
        node.meta["val"] = value
    assert not prepare._is_of_cudnn(nodes[0], None, None, nodes[1], nodes[2], 1e-5)
