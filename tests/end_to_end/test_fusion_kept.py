"""What was fused before: found again, proven again, and made again where it cannot be used."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from helpers.fused_plans import check_step, codes, made, needs_compiler
from helpers.stored import rewrite
from remat_compile import Plan
from remat_compile.backends.torch.kernels import (
    Kernel,
    Kernels,
    inductor,
)
from remat_compile.ir.graph import CNode
from remat_compile.plans.fusion import fuse
from remat_compile.plans.store import VARIABLE, digest


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
