"""Plan files with regions that were edited by hand: refused with a code and a place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

import remat_compile
from helpers.jax.arrays import quick_compilation
from helpers.jax.regions import GatedNet, fused_plan
from remat_compile import FBError
from remat_compile.backends.torch.kernels import missing
from remat_compile.cli import main
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.jax.make import jax_step
from remat_compile.plans.jax.run import run_step
from remat_compile.plans.jax.source import source_of_plan

TEXT = """fbir 1
graph @g {
  %x : input f64[4, 6] bytes 192
  %w : param f64[6] bytes 48
  %h : act f64[4, 6] bytes 192
  %s : act f64[4, 6] bytes 192
  %y : output f64[4, 6] bytes 192
  %dy : tangent f64[4, 6] bytes 192
  %dw : param_grad f64[6] bytes 48
  F1: fwd %h, %s = fused(%x, %w) {
    %t = aten.mul.Tensor(%x, %w)
    %h = aten.mul.Tensor(%t, 1.5)
    %s = aten.sigmoid.default(%h)
  }
  F2: fwd %y = aten.mul.Tensor(%h, %s)
  L: loss %dy = loss(%y)
  B1: bwd %dw = fused(%dy, %s) {
    %u = aten.mul.Tensor(%dy, %s)
    %dw = aten.sum.dim_IntList(%u, [0])
  } of F1
}
bind {
  arg "args[0]" = %x
  param "w" = %w grad %dw
  result %y tangent %dy
}
schedule @p { F1; F2; free %h; L; B1; free %s; free %dy }
"""
DRAWN = "%r, _ = aten.native_dropout.default(%x, 0.5, true)"
INSIDE, SCALE = "%t = aten.mul.Tensor(%x, %w)", "aten.mul.Tensor(%t, 1.5)"


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


def source(text: str) -> str:
    program = parse_program(text, "plan.fbir")
    return source_of_plan(program, program.schedules[0])


@pytest.mark.parametrize(
    ("was", "now", "code", "line"),
    [
        (INSIDE, f"{DRAWN}\n    %t = aten.mul.Tensor(%r, %w)", "FB0914", 10),
        (INSIDE, "%t = aten.neg.default(%x)", "FB0326", 10),
        (INSIDE, "%t = aten.normal.Tensor_Tensor(%x, %w)", "FB0914", 10),
        (INSIDE, "%t = aten.mul_.Tensor(%x, %w)", "FB0225", 10),
        (INSIDE, "%t = aten.mul.out(%x, %w, out=%x)", "FB0225", 10),
        (INSIDE, "%t = aten.mul.Tensor(%s, %w)", "FB0323", 10),
        (INSIDE, "%t = aten.mul.Tensor(%t, %w)", "FB0323", 10),
        (INSIDE, "%t = mylib.nothing.default(%x, %w)", "FB0920", 10),
        (INSIDE, "%t = os.system.default(%x, %w)", "FB0920", 10),
        (INSIDE, f"{INSIDE}\n    _ = aten._assert_async.default(%x)", "FB0942", 10),
        (INSIDE, "%t = aten.mm.default(%x, %w)", "FB0733", 10),
        (INSIDE, "%t, %v = aten.mul.Tensor(%x, %w)", "FB0733", 10),
        (INSIDE, f"{INSIDE}[2]", "FB0733", 10),
        (SCALE, 'aten.mul.Tensor(%t, "1.5")', "FB0733", 10),
        (SCALE, "aten.mul.Tensor(%t, [1.5, 2.0])", "FB0733", 10),
        (SCALE, "aten.mul.Tensor(%t, none)", "FB0733", 10),
        (SCALE, "aten.mul.Tensor(%t)", "FB0948", 10),
        (SCALE, "aten.mul.Tensor(%t, 1.5, bogus=1)", "FB0948", 10),
        (SCALE, f"aten.mul.Tensor(%t, {2**70})", "FB0222", 10),
        ("(%u, [0])", "(%u, [5])", "FB0733", 17),
        ("(%u, [0])", "(%u, [1])", "FB0733", 17),
        ("fused(%dy, %s)", "fused(%dy, %dy)", "FB0322", 17),
        ("%y = aten.mul.Tensor(%h, %s)", "%y = aten.mm.default(%h, %s)", "FB0733", 15),
    ],
)
def test_a_changed_text_is_refused_with_its_place(was: str, now: str, code: str, line: int) -> None:
    """FB0733 was a mistake of remat-compile (FB0722), or an array of another size, unnoticed."""
    assert was in TEXT
    with pytest.raises(FBError) as refused:
        source(TEXT.replace(was, now, 1))
    first = refused.value.diagnostics[0]
    assert (first.code, first.span and first.span.line) == (code, line)
    assert first.hint or code != "FB0733"


def test_results_in_another_order_are_the_same_results() -> None:
    """They are given by name: the values stay those of the calls."""
    text = TEXT.replace("fwd %h, %s = fused", "fwd %s, %h = fused")
    space: dict[str, object] = {"__name__": "step"}
    exec(source(text), space)
    generator = np.random.default_rng(3)
    x, w, dy = (generator.normal(size=shape) for shape in ((4, 6), 6, (4, 6)))
    outputs, _, grads, _ = jax.jit(space["step"])({"w": w}, {}, (x,), None, (dy,))  # type: ignore[call-overload]
    h = x * w * 1.5
    s = 1 / (1 + np.exp(-h))
    np.testing.assert_allclose(outputs[0], h * s, rtol=1e-12)
    np.testing.assert_allclose(grads["w"], (dy * s).sum(0), rtol=1e-12)


def test_a_changed_file_is_refused_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.fbir"
    path.write_text(TEXT.replace(SCALE, 'aten.mul.Tensor(%t, "1.5")'))
    assert main(["run", str(path), "--backend", "jax", "-q"]) == 1
    shown = capsys.readouterr().err
    assert "FB0733" in shown
    assert "plan.fbir:10" in shown
    assert "FB0722" not in shown


def test_regions_for_xla_run_in_pytorch(tmp_path: Path) -> None:
    """As kernels of Inductor, or by their calls where there is no compiler, which is told."""
    plan = fused_plan(torch.float64)
    plan.save(tmp_path / "plan.fbir")
    read = remat_compile.load(tmp_path / "plan.fbir")
    assert plan._exported is not None
    if missing(torch.device("cpu")) is not None:
        with pytest.warns(UserWarning, match="FB091[56]"):
            step = read.bind(plan._exported.original, plan._exported.args)
    else:
        step = read.bind(plan._exported.original, plan._exported.args)
    compared = compare_step(read, step, plan._exported, 1)
    assert compared.max_difference <= 1e-12


@pytest.mark.skipif(missing(torch.device("cpu")) is not None, reason="no C++ compiler")
def test_kernels_of_inductor_run_in_jax() -> None:
    torch.manual_seed(3)
    plan = remat_compile.plan(
        GatedNet(layers=1).double(),
        (torch.randn(16, 24, dtype=torch.float64),),
        planner="store-all",
        fuse="inductor",
        cache=False,
    )
    assert any(c.is_fused for c in plan.graph.cnodes)
    report = run_step(plan, jax_step(plan), plan._exported)
    assert report.is_sound, report.observed.defects()
    assert report.difference is not None
    assert report.difference <= 1e-12
