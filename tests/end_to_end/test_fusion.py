"""Plans with fusion, from a model to a step that runs: bytes, bits, and what is told."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule, kernels
from remat_compile.backends.torch.kernels import (
    InductorPrice,
    Kernel,
    Kernels,
    inductor,
    missing,
)
from remat_compile.backends.torch.kernels.price import KernelCost
from remat_compile.backends.torch.measure import measure_step
from remat_compile.driver import fuse, fused_ways
from remat_compile.driver.compare_torch import compare_step
from remat_compile.driver.plan_cache import FUSED_SUFFIX, VARIABLE, digest
from remat_compile.driver.regions import rounding
from remat_compile.driver.run_planner import Planned, run_planner
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.verifier import ProvenPlan

needs_compiler = pytest.mark.skipif(
    missing(torch.device("cpu")) is not None, reason="no C++ compiler"
)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = torch.tanh(h) * torch.sigmoid(h) * 1.5 + h
        return self.b(h).square().mean()


def made(way: str = "inductor", dtype: torch.dtype = torch.float32, **options: object) -> Plan:
    torch.manual_seed(0)
    model, x = Gated().to(dtype), torch.randn(512, 16, dtype=dtype)
    return remat_compile.plan(
        model, (x,), planner="dtr", activation_budget="90%", fuse=way, **options
    )


def codes(plan: Plan) -> list[str]:
    return [d.code for d in plan.warnings]


def check_step(plan: Plan, limit: float) -> None:
    """Proven again, measured to the byte, and equal to eager up to rounding."""
    assert any(c.is_fused for c in plan.graph.cnodes)
    assert isinstance(plan.verify(), ProvenPlan)
    assert any(a.key == "fused" for a in plan.assuming)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = plan.bind()
    assert isinstance(step, PlannedModule)
    assert plan._exported is not None
    report = compare_step(plan, step, plan._exported, 1)
    assert report.max_difference <= limit == rounding(plan.program)
    assert plan.proven is not None
    use = measure_step(step, plan._exported.args)
    assert use.measured_bytes == use.predicted_bytes == plan.proven.device_bytes


@needs_compiler
def test_a_fused_plan_runs_within_its_bound(tmp_path: Path) -> None:
    plan, unfused = made(), made("none")
    assert codes(plan) == ["FB0470"]
    assert "bits may differ" in plan.warnings[0].message
    assert codes(unfused) == []
    assert plan.peak_bytes <= unfused.peak_bytes
    check_step(plan, 1e-5)
    plan.save(tmp_path / "plan.fbir")
    read = remat_compile.load(tmp_path / "plan.fbir")
    assert read.graph == plan.graph
    assert plan._exported is not None
    check = read.check_model(plan._exported.original, plan._exported.args)
    assert "each the composition of the model's calls" in check.assumption


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


def is_from_cache(plan: Plan) -> bool:
    return "fuse" not in plan.phase_s


ELSEWHERE = "its graph was captured elsewhere"


def written(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the one fused plan that is kept, whose checksum is right again."""
    (path,) = folder.glob(f"*{FUSED_SUFFIX}")
    held = json.loads(path.read_text())
    change(held)
    held["sha256"] = digest(held["plan"])
    path.write_text(json.dumps(held))


@needs_compiler
def test_a_fused_plan_is_made_once(folder: Path) -> None:
    first, second = made(), made()
    assert not is_from_cache(first)
    assert is_from_cache(second)
    assert codes(second) == ["FB0470"]
    assert second.schedule == first.schedule
    assert second.program == first.program
    assert second.budget == first.budget
    check_step(second, 1e-5)
    assert len(list(folder.iterdir())) == 2  # the plan, and what was fused from it


@needs_compiler
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda held: held.update(plan=held["plan"].replace("1.5", "2.5")), "is another step"),
        (lambda held: held.update(plan=held["plan"].replace("fbir 1", "fbir 7")), "FB0102"),
        (lambda held: held.update(plan=held["plan"].replace('"cpu" {', '"tpu" {')), ELSEWHERE),
        (lambda held: held.update(plan=1 * held["plan"] + "{"), "FB0101"),
        (
            lambda held: held.update(
                plan=re.sub(r"( *free %\w+\n)+}\n", "}\n", held["plan"].split("proven")[0], count=1)
            ),
            "is not proven",
        ),
    ],
)
def test_what_was_fused_before_is_not_believed(
    folder: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    first = made()
    written(folder, change)
    again = made()
    assert not is_from_cache(again)
    assert codes(again) == ["FB0470", "FB0959"]
    assert says in again.warnings[1].message
    assert again.peak_bytes <= first.peak_bytes
    assert is_from_cache(made())


@needs_compiler
def test_what_was_fused_from_another_plan_is_made_again(folder: Path) -> None:
    made()
    written(folder, lambda held: held.update(of=digest("other")))
    again = made()
    assert not is_from_cache(again)
    assert codes(again) == ["FB0470"]


@needs_compiler
def test_what_was_fused_before_needs_its_kernels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes as were proven, and what the calls give; else it is as if there was none."""
    from remat_compile.backends.torch.kernels import made as made_kernels

    made()
    real = Kernels.kernel

    def hungry(self: Kernels, c: CNode, args: Sequence[Tensor]) -> Kernel | None:
        kernel = real(self, c, args)
        return kernel and replace(kernel, workspace_bytes=kernel.workspace_bytes + 10**6)

    with monkeypatch.context() as patched:
        patched.setattr(Kernels, "kernel", hungry)
        again = made()
    (warning,) = (d for d in again.warnings if d.code == "FB0959")
    assert "bytes of workspace here" in warning.message

    def fails(_: object) -> object:
        raise inductor.KernelError("CppCompileError")

    monkeypatch.setattr(made_kernels, "compile_traced", fails)
    without = made()
    assert codes(without) == ["FB0469", "FB0959"]
    assert "there is no kernel for" in without.warnings[1].message


@needs_compiler
def test_kernels_of_what_was_fused_before_have_the_time_of_a_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which each kernel takes 100 s: without what the compiler kept, a second start
    may not take longer than a first. The plan stays in the cache, for when there is time."""
    first = made()
    regions = sum(c.is_fused for c in first.graph.cnodes)
    assert regions > 1
    now_s = 0.0
    real = Kernels.kernel

    def slow(self: Kernels, c: CNode, args: Sequence[Tensor]) -> Kernel | None:
        nonlocal now_s
        now_s += 100.0
        return real(self, c, args)

    with monkeypatch.context() as patched:
        patched.setattr(Kernels, "kernel", slow)
        patched.setattr(fuse, "monotonic", lambda: now_s)
        late = made(time_limit_s=60.0)
        assert codes(late) == ["FB0469"]
        assert f"within 60 s: 1 of {regions} are" in late.warnings[0].message
        assert not any(c.is_fused for c in late.graph.cnodes)
        enough = made(time_limit_s=100.0 * regions)
        assert codes(enough) == ["FB0470"]
    again = made()
    assert is_from_cache(again)
    assert again.program == first.program


class Turned(nn.Module):
    """The halves of each row turned, as for positions in attention."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        left, right = h.chunk(2, -1)
        return (h * torch.cat((-right, left), -1)).square().mean()


@needs_compiler
def test_what_no_tag_tells_is_taken_into_kernels() -> None:
    torch.manual_seed(0)
    model, x = Turned(), torch.randn(512, 16)
    plan, unfused = (
        remat_compile.plan(model, (x,), planner="store-all", fuse=way)
        for way in ("inductor", "none")
    )
    regions = [inner.call.op for c in plan.graph.cnodes for inner in c.call.region]
    assert {"aten.cat.default", "aten.slice_backward.default"} & {*regions}
    assert "aten.cat.default" in regions
    assert plan.peak_bytes < unfused.peak_bytes
    check_step(plan, 1e-5)


class Spectral(nn.Module):
    """`imag` of a conjugate is a view that is only marked as negated."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.rfft(self.a(torch.tanh(x) * torch.sigmoid(x))).conj().imag
        return (torch.tanh(z) * torch.sigmoid(z) + z).square().mean()


@needs_compiler
def test_what_is_only_marked_as_negated_gives_the_same_values() -> None:
    """Inside the step, where no kernel is made for it, and as its argument."""
    torch.manual_seed(0)
    model, x = Spectral(), torch.randn(64, 16)
    plan = remat_compile.plan(model, (x,), planner="store-all", fuse="inductor")
    assert any(c.is_fused for c in plan.graph.cnodes)
    step = plan.bind()
    for argument in (x, torch._neg_view(x)):
        model.zero_grad()
        wanted = model(argument)
        wanted.backward()
        gradients = [p.grad for p in model.parameters()]
        model.zero_grad()
        if argument is x:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loss = step(argument)
        else:
            with pytest.warns(UserWarning, match="FB0915.*only marked as negated"):
                loss = step(argument)
        loss.backward()
        torch.testing.assert_close(loss, wanted)
        for p, gradient in zip(step.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient)


@needs_compiler
@pytest.mark.slow
def test_in_double_precision() -> None:
    check_step(made(dtype=torch.float64), 1e-12)


@needs_compiler
@pytest.mark.slow
def test_compile_is_a_drop_in() -> None:
    torch.manual_seed(0)
    model, x = Gated(), torch.randn(512, 16)
    model(x).backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with pytest.warns(UserWarning, match="FB0470"):
        step = remat_compile.compile(
            model, (x,), planner="dtr", activation_budget="90%", fuse="inductor"
        )
    step(x).backward()
    for p, grad in zip(model.parameters(), wanted, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, grad, rtol=1e-5, atol=1e-7)


def test_without_a_compiler_the_plan_is_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "missing", lambda _: "no C++ compiler is installed")
    plan = made()
    assert codes(plan) == ["FB0468"]
    assert plan.warnings[0].message == "the plan is not fused: no C++ compiler is installed"
    assert not any(c.is_fused for c in plan.graph.cnodes)
    assert isinstance(plan.verify(), ProvenPlan)


def test_where_no_kernel_can_be_made_the_plan_is_unfused() -> None:
    assert codes(made("auto", costs="roofline", device="h200"))[-1] == "FB0468"
    batch = torch.export.Dim("batch", min=2, max=1024)
    dynamic = made("auto", dynamic_shapes={"x": {0: batch}})
    assert codes(dynamic)[-1] == "FB0468"
    assert "dynamic" in dynamic.warnings[-1].message


def test_kernels_that_fail_leave_the_plan_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    from remat_compile.backends.torch.kernels import made as made_kernels

    def fails(_: object) -> object:
        raise inductor.KernelError("CppCompileError")

    monkeypatch.setattr(made_kernels, "compile_traced", fails)
    assert codes(made()) == ["FB0469"]


class _Priced(InductorPrice):
    """Kernels that nobody compiles, at a share of the time of their calls."""

    share = 0.5

    def cost(self, c: CNode) -> KernelCost | None:
        return KernelCost(max(1, int((c.time_ns or 0) * self.share)), 0)


@needs_compiler
def test_what_is_slower_as_kernels_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "InductorPrice", _Priced)
    monkeypatch.setattr(_Priced, "share", 2.0)
    plan = made("auto")
    assert codes(plan) == ["FB0469"]
    assert "no run of this plan is faster as a kernel" in plan.warnings[0].message


@needs_compiler
def test_it_is_planned_again_at_the_prices_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """First at a tenth of the time of what may be fused, then at what folding it took."""
    times: list[dict[str, int]] = []

    def planner(program: Program, *args: Any, **options: Any) -> Planned:
        graph = program.graph
        times.append({c.name: c.time_ns or 0 for c in graph.in_phase("fwd") if not c.is_fused})
        return run_planner(program, *args, **options)

    monkeypatch.setattr(kernels, "InductorPrice", _Priced)
    monkeypatch.setattr(fused_ways, "run_planner", planner)
    plan = made("auto")
    assert codes(plan) == ["FB0470"]
    first, second, *_ = times
    assert first.keys() == second.keys()
    changed = {name for name, time_ns in first.items() if second[name] != time_ns}
    assert changed
    for name in changed:  # half of its calls' time, less half of that of the others
        assert second[name] == pytest.approx(5 * first[name], rel=0.05)


def test_a_plan_whose_kernels_are_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs by the calls, whose bits are those of eager, and does not claim its bound."""
    from helpers.verifier.mutants.fused import all_runs_fused
    from remat_compile.backends.torch.kernels import made as made_kernels
    from remat_compile.driver.bind import bind

    plan = made("none")
    program, schedule = all_runs_fused(plan.program, plan.schedule)
    assert plan._exported is not None

    def fails(_: object) -> object:
        raise inductor.KernelError("CppCompileError")

    monkeypatch.setattr(made_kernels, "compile_traced", fails)
    with pytest.warns(UserWarning, match="FB0915"):
        step = bind(program, schedule, plan._exported)
    assert compare_step(plan, step, plan._exported, 1).bit_equal
    monkeypatch.setattr(kernels, "missing", lambda _: "no C++ compiler is installed")
    with pytest.warns(UserWarning, match="FB0916"):
        step = bind(program, schedule, plan._exported)
    assert compare_step(plan, step, plan._exported, 1).bit_equal


@needs_compiler
def test_regions_of_dynamic_sizes_run_by_their_calls() -> None:
    from helpers.verifier.mutants.fused import all_runs_fused
    from remat_compile.driver.bind import bind

    batch = torch.export.Dim("batch", min=2, max=1024)
    plan = made("none", dynamic_shapes={"x": {0: batch}})
    program, schedule = all_runs_fused(plan.program, plan.schedule)
    assert plan._exported is not None
    with pytest.warns(UserWarning, match="FB0915"):
        step = bind(program, schedule, plan._exported)
    assert compare_step(plan, step, plan._exported, 1).bit_equal


def test_another_model_is_refused() -> None:
    from helpers.verifier.mutants.fused import all_runs_fused
    from remat_compile.driver.bind import bind

    class Other(Gated):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            h = torch.tanh(h) * torch.sigmoid(h) * 1.25 + h
            return self.b(h).square().mean()

    plan = made("none")
    program, schedule = all_runs_fused(plan.program, plan.schedule)
    other = remat_compile.plan(Other(), (torch.randn(512, 16),), planner="store-all")
    assert other._exported is not None
    with pytest.raises(FBError) as refused:
        bind(program, schedule, other._exported, by_calls=True)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0710"
    assert any("is not the value that it has" in note.message for note in diagnostic.notes)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("(%h, 2)", "(%h, 2)[0]"),
        ("    %y =", "    %junk = aten.zeros.default([4])[0]\n    %y ="),
        ("    %y =", "    %junk = aten.std_mean.default(%h, true)[2]\n    %y ="),
    ],
)
def test_a_pick_that_its_operator_does_not_give_is_refused(was: str, now: str) -> None:
    """Generated code would take a row of the tensor, which is not the term."""
    from remat_compile._torch.callable import check_operators
    from remat_compile.ir.text.parser import parse_program

    text = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %y : output f32[4] bytes 16
  F1: fwd %y = fused(%x) {
    %h = aten.neg.default(%x)
    %t = aten.pow.Tensor_Scalar(%h, 2)
    %u = aten.split_copy.Tensor(%t, 2)[1]
    %y = aten.cat.default([%u, %u])
  }
  L: loss loss(%y)
}
bind {
  arg "args[0]" = %x
  result %y
}
"""
    check_operators(parse_program(text).graph)
    assert was in text
    with pytest.raises(FBError) as refused:
        check_operators(parse_program(text.replace(was, now)).graph)
    assert [(d.code, d.span and d.span.line) for d in refused.value.diagnostics] == [("FB0944", 5)]


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FBError) as refused:
        made("always")
    assert [d.code for d in refused.value.diagnostics] == ["FB0707"]
    made("none").save(tmp_path / "plan.fbir")
    with pytest.raises(FBError) as refused:
        remat_compile.plan(tmp_path / "plan.fbir", fuse="auto")
    assert [d.code for d in refused.value.diagnostics] == ["FB0471"]


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sigmoid() * x.tanh() * 1.5


@needs_compiler
def test_kernels_run_where_a_gradient_is_expanded() -> None:
    """They are made for the layout of the result, and the copy into it was counted."""
    x = torch.randn(512, 64)
    plan = remat_compile.plan(_Layer(), (x,), planner="store-all", fuse="inductor")
    assert any(c.is_fused and c.phase == "bwd" for c in plan.graph.cnodes)
    step = plan.bind()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(x).sum().backward()
    with pytest.warns(UserWarning, match="FB0918.*is copied before the backward"):
        step(x).backward(torch.randn(64, 512).T)
