"""Plans with fusion, from a model to a step that runs: bytes, bits, and what is told."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import Gated, check_step, codes, made, needs_compiler
from helpers.slow import default_only
from remat_compile import Plan
from remat_compile.backends.torch import kernels
from remat_compile.backends.torch.kernels import InductorPrice, inductor
from remat_compile.backends.torch.kernels.price import KernelCost
from remat_compile.costs import load_device, roofline
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.planners import parse_planner
from remat_compile.plans import make as make_plan
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.fusion import ways as fused_ways
from remat_compile.plans.fusion.fuse import fused_plan
from remat_compile.plans.fusion.ways import FusedWay, in_order
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Phases, Planned, run_planner
from remat_compile.verifier import ProvenPlan


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


# -- A fused plan takes no more bytes than the plan it was made from, and no mor ------------------


class Block(nn.Module):
    """A gated layer after a root-mean-square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        made: Tensor = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return made


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(32), Block(32))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(x).square().mean()
        return made


def computed(lowered: Any, said: object = None) -> Program:
    program: Program = lowered.program
    timed = roofline(program, load_device("cpu"))
    return replace(program, graph=timed.graph, header=timed.header)


class ByBytes(InductorPrice):
    """Kernels that nobody compiles: what they read and write, at 20 GB/s."""

    def cost(self, c: CNode) -> KernelCost | None:
        tensors = [self.values[name] for name in (*c.call.refs(), *c.results)]
        return KernelCost(5000 + sum(t.numel() * t.element_size() for t in tensors) // 20, 0)


@needs_compiler
@pytest.mark.parametrize(
    "budget", default_only(["range:0.8", "range:0.7", "range:0.5"], ["range:0.7"])
)
def test_no_fused_plan_takes_more_than_its_own_plan(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_plan, "_measured", computed)
    monkeypatch.setattr(kernels, "InductorPrice", ByBytes)
    model, x = Stack(), torch.randn(256, 32)

    def plan(way: str) -> Plan:
        return remat_compile.plan(
            model, (x,), activation_budget=budget, planner="dtr", fuse=way, cache=False
        )

    fused, unfused = plan("auto"), plan("none")
    assert any(c.is_fused for c in fused.graph.cnodes)
    assert fused.time_s < unfused.time_s
    assert fused.peak_bytes <= unfused.peak_bytes
    assert fused.activation_peak_bytes <= unfused.activation_peak_bytes
    assert isinstance(fused.verify(), ProvenPlan)


def way(ms: float, mb: float) -> FusedWay:
    made: Any = f"{ms} ms, {mb} MB"
    return FusedWay(made, round(ms * 1e6), (round(mb * 10**6), round(mb * 10**6)))


def test_of_plans_about_as_fast_that_with_the_lowest_peak_comes_first() -> None:
    ways = [way(100, 90), way(100.18, 70), way(100.22, 40), way(100.1, 80)]
    assert in_order(ways) == [ways[1], ways[3], ways[0], ways[2]]
    assert in_order([]) == []


# -- Plans that are not fused, or run without their kernels, and what is refused -------------------


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


def test_for_other_devices_there_are_no_kernels() -> None:
    plain = made("none")
    header = replace(plain.program.header, device="mps:0")
    elsewhere = replace(plain, program=replace(plain.program, header=header))
    request = PlanRequest(parse_planner("dtr"), fuse="auto")
    plan = fused_plan(elsewhere, None, request, Phases())  # type: ignore[arg-type]
    assert [d.code for d in plan.warnings] == ["FB0468"]
    assert "kernels are made for CPUs and for CUDA, and the model is on mps:0" in str(plan.warnings)
    assert plan.graph == plain.graph


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
    from remat_compile.plans.bind import bind

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
    from remat_compile.plans.bind import bind

    batch = torch.export.Dim("batch", min=2, max=1024)
    plan = made("none", dynamic_shapes={"x": {0: batch}})
    program, schedule = all_runs_fused(plan.program, plan.schedule)
    assert plan._exported is not None
    with pytest.warns(UserWarning, match="FB0915"):
        step = bind(program, schedule, plan._exported)
    assert compare_step(plan, step, plan._exported, 1).bit_equal


def test_another_model_is_refused() -> None:
    from helpers.verifier.mutants.fused import all_runs_fused
    from remat_compile.plans.bind import bind

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
    from remat_compile.ir.text.parser import parse_program
    from remat_compile.operators.callable import check_operators

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
