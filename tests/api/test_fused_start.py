"""The second start of a fused plan: without a capture, with the same kernels, never believed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import Gated, needs_compiler
from helpers.starts import edit, entry
from remat_compile.backends.torch import kernels, measure_step
from remat_compile.backends.torch.kernels import Kernels, made
from remat_compile.backends.torch.kernels.inductor import KernelError
from remat_compile.driver import fuse
from remat_compile.ir.graph import CNode

pytestmark = needs_compiler


def started(**options: Any) -> tuple[Any, list[str]]:
    """The module of one start, and what was said, by code."""
    torch.manual_seed(0)
    chosen = {"activation_budget": "90%", "planner": "dtr", "fuse": "inductor", **options}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = remat_compile.compile(Gated(), (torch.randn(512, 16),), **chosen)
    messages = (str(w.message) for w in said)
    return module, [m.split("[")[1].split("]")[0] for m in messages if "[FB" in m]


def step(module: nn.Module) -> list[Tensor]:
    x = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
    module.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a region that runs by its calls says so
        loss = module(x)
        loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def test_a_fused_step_is_captured_once(folder: Path, captures: list[object]) -> None:
    first, said = started()
    assert said == ["FB0470"]
    second, said = started()
    assert said == ["FB0470"]
    assert len(captures) == 1
    steps = first.planned_step, second.planned_step
    assert any(c.is_fused for c in steps[0].program.graph.cnodes)
    assert steps[0].program.graph == steps[1].program.graph
    assert steps[0].schedule == steps[1].schedule
    assert steps[0].source == steps[1].source
    for mine, other in zip(step(first), step(second), strict=True):
        assert torch.equal(mine, other)
    use = measure_step(second, (torch.randn(512, 16),))
    assert use.measured_bytes == use.predicted_bytes


def as_another(start: dict[str, Any]) -> None:
    start["fused"]["of"] = start["fused"]["of"].replace("1.5", "2.5")


def as_unfused(start: dict[str, Any]) -> None:
    start["fused"] = None


def as_other_layouts(start: dict[str, Any]) -> None:
    layouts = start["fused"]["layouts"]
    start["fused"]["layouts"] = {name: [[-1], [1], "f32"] for name in layouts}


def as_other_types(start: dict[str, Any]) -> None:
    """A kernel made for them would read 8 bytes where 4 are."""
    for layout in start["fused"]["layouts"].values():
        layout[2] = "f64"


def as_other_shapes(start: dict[str, Any]) -> None:
    for layout in start["fused"]["layouts"].values():
        layout[0] = [2 * n for n in layout[0]]


def as_too_many_strides(start: dict[str, Any]) -> None:
    for layout in start["fused"]["layouts"].values():
        layout[1] = [*layout[1], 1]


def as_far_apart(start: dict[str, Any]) -> None:
    for layout in start["fused"]["layouts"].values():
        layout[1] = [2**40 for _ in layout[1]]


def as_no_layouts(start: dict[str, Any]) -> None:
    start["fused"]["layouts"] = {}


def as_nothing(start: dict[str, Any]) -> None:
    start["fused"] = "fused"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (as_another, "another step"),
        (as_other_layouts, "the layout of %.* is none of it"),
        (as_other_types, "the layout of %.* is none of it"),
        (as_other_shapes, "the layout of %.* is none of it"),
        (as_too_many_strides, "the layout of %.* is none of it"),
        (as_far_apart, "the layout of %.* is none of it"),
        (as_no_layouts, "the layout of %.* is none of it"),
        (as_nothing, "what was fused is none"),
        (as_unfused, "what it was fused from is not there"),
    ],
)
def test_an_entry_that_is_damaged_is_told_and_written_again(
    folder: Path, captures: list[object], change: Callable[[dict[str, Any]], None], says: str
) -> None:
    started()
    edit(entry(folder), change)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=f"FB0523.*{says}"):
        remat_compile.compile(
            Gated(),
            (torch.randn(512, 16),),
            activation_budget="90%",
            planner="dtr",
            fuse="inductor",
        )
    assert len(captures) == 2
    assert started()[1] == ["FB0470"]
    assert len(captures) == 2


def test_layouts_of_something_else_do_not_reach_the_step(
    folder: Path, captures: list[object]
) -> None:
    """Kernels made for them would not fit what the step has; the region runs by its calls."""
    first, _ = started()

    def turned(start: dict[str, Any]) -> None:
        layouts = start["fused"]["layouts"]
        for name, (shape, _, dtype) in layouts.items():
            if len(shape) == 2:
                layouts[name] = [shape, [1, shape[0]], dtype]

    edit(entry(folder), turned)
    second, _ = started()
    x = torch.randn(512, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(second(x), first(x))


class Turned(nn.Module):
    """A region reads parts and turned views, of an argument that does not lie in order too."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x).chunk(2, dim=1)
        h = torch.tanh(left).t() * torch.sigmoid(right).t() * 1.5
        return (h[1:] * x.t().sum(0)).square().mean()


def test_views_that_kernels_read_are_taken_again(folder: Path, captures: list[object]) -> None:
    """Kept is how that lies of which they are views."""
    x = torch.randn(32, 512)[8:24].t()
    chosen = {"activation_budget": "100%", "planner": "store-all", "fuse": "inductor"}
    losses, grads = [], []
    for _ in range(3):
        torch.manual_seed(0)
        model: Any = Turned()
        if len(losses) > 0:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = remat_compile.compile(model, (x,), **chosen)
            assert [str(w.message)[8:14] for w in said] == ["FB0470"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses.append(model(x))
        losses[-1].backward()
        grads.append([p.grad for p in model.parameters()])
    assert len(captures) == 1
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(grads[1], grads[0])
    assert torch.equal(losses[1], losses[2])
    assert [*map(torch.equal, grads[1], grads[2])] == [True, True]


def test_without_a_compiler_it_is_captured(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    started()

    def fails(_: object) -> object:
        raise KernelError("InvalidCxxCompiler")

    monkeypatch.setattr(kernels, "missing", lambda _: "no C++ compiler is installed")
    monkeypatch.setattr(made, "compile_traced", fails)
    module, said = started()
    assert said == ["FB0468"]
    assert len(captures) == 2
    assert not any(c.is_fused for c in module.planned_step.program.graph.cnodes)


def test_kernels_of_a_second_start_have_the_time_of_a_plan(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which each takes 100 s."""
    started(time_limit_s=60.0)
    now_s, real = 0.0, Kernels.kernel

    def slow(self: Kernels, c: CNode, args: Sequence[Tensor]) -> object:
        nonlocal now_s
        now_s += 100.0
        return real(self, c, args)

    monkeypatch.setattr(Kernels, "kernel", slow)
    monkeypatch.setattr(fuse, "monotonic", lambda: now_s)
    assert started(time_limit_s=60.0)[1] == ["FB0469"]
    assert len(captures) == 2
