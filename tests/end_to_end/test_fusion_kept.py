"""What was fused before: found again, proven again, and made again where it cannot be used."""

from __future__ import annotations

import platform
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import check_step, codes, made, needs_compiler
from helpers.stored import rewrite
from remat_compile import Plan
from remat_compile.backends.torch.code.emit import emit
from remat_compile.backends.torch.kernels import Kernel, Kernels, inductor, missing
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.files.store import VARIABLE, digest
from remat_compile.plans.fusion import fuse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A fused plan and the folder in which it was kept; tests change copies of that."""
    kept = tmp_path_factory.mktemp("kept") / "plans"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, str(kept))
        return made(), kept


@pytest.fixture
def kept(folder: Path, first: tuple[Plan, Path]) -> Plan:
    """The plan that lies in `folder`."""
    shutil.copytree(first[1], folder)
    return first[0]


def is_from_cache(plan: Plan) -> bool:
    return "fuse" not in plan.phase_s


ELSEWHERE = "its graph was captured elsewhere"


def written(folder: Path, change: Callable[[str], str]) -> None:
    """Changes the text of the one fused plan that is kept."""
    rewrite(folder, "fused", lambda value: [change(value[0]), value[1]])


@needs_compiler
def test_a_fused_plan_is_made_once(folder: Path, kept: Plan) -> None:
    first, second = kept, made()
    assert not is_from_cache(first)
    assert is_from_cache(second)
    assert codes(second) == ["FB0470"]
    assert second.schedule == first.schedule
    assert second.program == first.program
    assert second.budget == first.budget
    check_step(second, 1e-5)
    kinds = [".remat-costs", ".remat-fused", ".remat-plan", ".remat-times"]
    assert sorted(path.suffix for path in folder.iterdir()) == kinds


@needs_compiler
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("1.5", "2.5"), "is another step"),
        (lambda text: text.replace("fbir 1", "fbir 7"), "FB0102"),
        (lambda text: text.replace('"cpu" {', '"tpu" {'), ELSEWHERE),
        (lambda text: text + "{", "FB0101"),
        (
            lambda text: re.sub(r"( *free %\w+\n)+}\n", "}\n", text.split("proven")[0], count=1),
            "is not proven",
        ),
    ],
)
def test_what_was_fused_before_is_not_believed(
    folder: Path, kept: Plan, change: Callable[[str], str], says: str
) -> None:
    written(folder, change)
    again = made()
    assert not is_from_cache(again)
    assert codes(again) == ["FB0470", "FB0959"]
    assert says in again.warnings[1].message
    assert again.peak_bytes <= kept.peak_bytes
    assert is_from_cache(made())


@needs_compiler
def test_what_was_fused_from_another_plan_is_made_again(folder: Path, kept: Plan) -> None:
    rewrite(folder, "fused", lambda value: [value[0], digest("other")])
    again = made()
    assert not is_from_cache(again)
    assert codes(again) == ["FB0470"]


@needs_compiler
def test_what_was_fused_before_needs_its_kernels(
    kept: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes as were proven, and what the calls give; else it is as if there was none."""
    from remat_compile.backends.torch.kernels import made as made_kernels

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
    kept: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which each kernel takes 100 s: without what the compiler kept, a second start
    may not take longer than a first. The plan stays in the cache, for when there is time."""
    regions = sum(c.is_fused for c in kept.graph.cnodes)
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
    assert again.program == kept.program


# -- Fusion and what is wrong with what it is given -----------------------------------------------


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


def planned_net(scale: float = 1.5) -> Plan:
    torch.manual_seed(0)
    return remat_compile.plan(
        Net(scale), (torch.randn(512, 16),), planner="store-all", fuse="inductor"
    )


@needs_compiler
def test_a_compiler_that_fails_leaves_the_calls_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was fused is bound where the compiler is there and breaks off at each kernel."""
    from torch._inductor import config
    from torch._inductor.codecache import CppCodeCache
    from torch._inductor.cpp_builder import get_cpp_compiler

    plan = planned_net(1.25)
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
    planned_net()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "2.99.0")
        torch_differs = planned_net()
    with monkeypatch.context() as patched:
        patched.setattr(platform, "processor", lambda: "another one")
        processor_differs = planned_net()
    for other in (torch_differs, processor_differs):
        assert codes(other) == ["FB0470"]
        assert "fuse" in other.phase_s
    assert len([*folder.glob("*.remat-fused")]) == 3
    again = planned_net()
    assert "fuse" not in again.phase_s
    assert codes(again) == ["FB0470"]


@needs_compiler
def test_other_shapes_are_refused_or_run_in_eager() -> None:
    """Kernels are made for those of the capture, and are never given others."""
    plan = planned_net()
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
