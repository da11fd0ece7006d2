"""Fusion and what is wrong with what it is given: the compiler, the cache, shapes, the text."""

from __future__ import annotations

import platform
import stat
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile import Plan
from remat_compile.backends.torch.code.emit import emit
from remat_compile.backends.torch.kernels import missing
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.store import VARIABLE

needs_compiler = pytest.mark.skipif(
    missing(torch.device("cpu")) is not None, reason="no C++ compiler"
)


class Net(nn.Module):
    """`scale` makes its kernels others than those that are compiled already."""

    def __init__(self, scale: float = 1.5) -> None:
        super().__init__()
        self.scale = scale
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = torch.tanh(h) * torch.sigmoid(h) * self.scale + h
        return self.b(h).square().mean()


BROKEN = """#!/bin/sh
for a; do case $a in *.cpp) exit 1;; esac; done
exec {real} "$@"
"""
"""A compiler that tells its version and compiles nothing."""


def made(scale: float = 1.5) -> Plan:
    torch.manual_seed(0)
    return remat_compile.plan(
        Net(scale), (torch.randn(512, 16),), planner="store-all", fuse="inductor"
    )


def codes(plan: Plan) -> list[str]:
    return [d.code for d in plan.warnings]


@needs_compiler
def test_a_compiler_that_fails_leaves_the_calls_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was fused is bound where the compiler is there and breaks off at each kernel."""
    from torch._inductor import config
    from torch._inductor.codecache import CppCodeCache
    from torch._inductor.cpp_builder import get_cpp_compiler

    plan = made(1.25)
    assert codes(plan) == ["FB0470"]
    plan.save(tmp_path / "plan.fbir")
    compiler = tmp_path / "compiler"
    compiler.write_text(BROKEN.format(real=get_cpp_compiler()))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    CppCodeCache.cache_clear()
    read = remat_compile.load(tmp_path / "plan.fbir")
    assert plan._exported is not None
    with config.patch({"cpp.cxx": (str(compiler),)}):
        assert missing(torch.device("cpu")) is None
        with pytest.warns(UserWarning, match="FB0915.*run by their calls") as said:
            step = read.bind(plan._exported.original, plan._exported.args)
    assert len([w for w in said if "FB0915" in str(w.message)]) == 1
    assert "Cpp" in str(said[0].message)
    assert compare_step(read, step, plan._exported, 1).bit_equal


@needs_compiler
def test_what_was_fused_by_another_torch_or_processor_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another key: the plan is fused anew, and all stay."""
    folder = tmp_path / "plans"
    monkeypatch.setenv(VARIABLE, str(folder))
    made()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "2.99.0")
        torch_differs = made()
    with monkeypatch.context() as patched:
        patched.setattr(platform, "processor", lambda: "another one")
        processor_differs = made()
    for other in (torch_differs, processor_differs):
        assert codes(other) == ["FB0470"]
        assert "fuse" in other.phase_s
    assert len([*folder.glob("*.remat-fused")]) == 3
    again = made()
    assert "fuse" not in again.phase_s
    assert codes(again) == ["FB0470"]


@needs_compiler
def test_other_shapes_are_refused_or_run_in_eager() -> None:
    """Kernels are made for those of the capture, and are never given others."""
    plan = made()
    step = plan.bind()
    step(torch.randn(512, 16)).backward()
    for other in (torch.randn(256, 16), torch.randn(512, 16, dtype=torch.float64)):
        with pytest.raises(FBError) as refused:
            step(other)
        assert [d.code for d in refused.value.diagnostics] == ["FB0910"]
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = remat_compile.compile(
            model,
            (torch.randn(512, 16),),
            planner="store-all",
            fuse="inductor",
            on_new_shape="eager",
        )
    x = torch.randn(256, 16)
    with pytest.warns(UserWarning, match="FB0913"):
        result = compiled(x)
    assert torch.equal(result, model(x))


EFFECT = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %y : output f32[4] bytes 16
  F1: fwd %y = fused(%x) {
    %h = aten.neg.default(%x)
    %y = aten.add.Tensor(%h, %h)
  }
  L: loss loss(%y)
}
bind {
  arg "args[0]" = %x
  result %y
}
schedule @p { F1; L }
"""


def emitted(text: str) -> str:
    program = parse_program(text)
    return emit(program, program.schedules[0])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("aten.neg_.default(%x)", "FB0225"),
        ("aten.add.out(%x, %x, out=%x)", "FB0225"),
        ("aten.bernoulli.default(%x)", "FB0914"),
        ("c10d.broadcast_.default(%x)", "FB0942"),
        ("profiler._record_function_enter_new.default(%x)", "FB0942"),
        ("aten.no_such_operator.default(%x)", "FB0942"),
        ("aten.add.Tensor(%x, %y)", "FB0323"),
    ],
)
def test_a_region_with_an_effect_a_cycle_or_an_unknown_operator_is_refused(
    call: str, code: str
) -> None:
    """Where it is read, or where code is made of it; at the line of its cNode."""
    text = EFFECT.replace("aten.neg.default(%x)", call)
    with pytest.raises(FBError) as refused:
        emitted(text)
    assert [(d.code, d.span and d.span.line) for d in refused.value.diagnostics] == [(code, 5)]
