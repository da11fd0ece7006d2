"""Fused cNodes in generated JAX code: one function each, under one name, read back. Files with
regions that were edited by hand are refused with a code and a place."""

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
from helpers.paths import fbir
from remat_compile import FBError
from remat_compile.backends.jax.emit.twins import twins
from remat_compile.backends.jax.readback.explicit import check_source
from remat_compile.backends.jax.support import require_lowerings
from remat_compile.backends.torch.kernels import missing
from remat_compile.cli import main
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.compare.step import compare_step
from remat_compile.plans.jax.make import jax_step
from remat_compile.plans.jax.run import run_step
from remat_compile.plans.jax.source import source_of_plan

TEXT = fbir("backends/jax/texts/regions")
"""A region with a view, two results and a part of a tuple, that runs again in the backward."""

AGAIN = fbir("backends/jax/texts/regions_again")
"""The backward makes inside its region what the forward made and freed."""

VIEWED = fbir("backends/jax/texts/regions_viewed")
"""A region makes a view of an argument that stands outside of it too."""

EDITED = fbir("backends/jax/texts/regions_edited")
DRAWN = "%r, _ = aten.native_dropout.default(%x, 0.5, true)"
INSIDE, SCALE = "%t = aten.mul.Tensor(%x, %w)", "aten.mul.Tensor(%t, 1.5)"


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


def read(text: str = TEXT) -> Program:
    return parse_program(text, "plan.fbir")


def source(text: str = TEXT) -> str:
    program = read(text)
    return source_of_plan(program, program.schedules[0])


def test_each_region_is_a_function_under_one_name() -> None:
    text = source()
    assert (
        """
def fused0(a0, a1):
    t0 = aten_mul_Tensor(a0, a1)
    (t1, _1,) = aten_sort_default(t0, 0, False)
    (_0, t2,) = aten_split_Tensor(t0, 3, 1)[:2]
    t3 = aten_full_default((4, 6), 2.0)
    t4 = aten_add_Tensor(t1, t3, alpha=2)
    t5 = aten_sum_dim_IntList(t2, (1,), True)
    t6 = aten_mul_Tensor(t4, t5)
    return (t4, t6,)
"""
        in text
    )
    assert '    with jax.named_scope("F1#1"):\n        (h, y) = fused0(xv, w)\n' in text
    assert '    with jax.named_scope("F1#2"):\n        (h, _) = fused0(xv, w)\n' in text
    assert '    with jax.named_scope("B1#1"):\n        (dw,) = fused1(dy, h)\n' in text


def test_values_are_those_of_pytorch() -> None:
    """Of a view, a sum over an axis, two results and a second run."""
    space: dict[str, object] = {"__name__": "step"}
    exec(source(), space)
    generator = np.random.default_rng(3)
    x, w, dy = (generator.normal(size=shape) for shape in ((4, 6), 6, (4, 6)))
    outputs, _, grads, _ = jax.jit(space["step"])({"w": w}, {}, (x,), None, (dy,))  # type: ignore[call-overload]
    u, v = torch.tensor(x), torch.tensor(w)
    t = u * v
    h = torch.add(t.sort(0)[0], torch.full((4, 6), 2.0, dtype=torch.float64), alpha=2)
    np.testing.assert_allclose(outputs[0], h * t.split(3, 1)[1].sum(1, True), rtol=1e-12)
    np.testing.assert_allclose(grads["w"], (torch.tensor(dy) * h).sum(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("was", "now", "code"),
    [
        ("aten_mul_Tensor(a0, a1)\n    (t1", "aten_mul_Tensor(a1, a0)\n    (t1", "FB0945"),
        ("alpha=2", "alpha=3", "FB0945"),
        ("return (t4, t6,)", "return (t6, t4,)", "FB0945"),
        ("(_0, t2,) = aten_split", "(t2, _0,) = aten_split", "FB0945"),
        ("fused1(dy, h)", "fused1(h, dy)", "FB0945"),
        ("(h, _) = fused0(xv, w)", "(h, y) = fused0(xv, w)", "FB0945"),
        ("(dw,) = fused1", "dw = fused1", "FB0945"),
        ("    t5 = aten_sum", "    print(t4)\n    t5 = aten_sum", "FB0946"),
        ("(t1, _1,) = aten_sort", "t1 = aten_sort", "FB0946"),
        ("def fused0(a0, a1):", "def fused0(a0, a1=4):", "FB0946"),
        ("    (x,) = args\n", "    (x,) = args\n    fused1 = x\n", "FB0946"),
    ],
)
def test_code_of_another_region_is_refused(was: str, now: str, code: str) -> None:
    program, text = read(), source()
    assert was in text
    check_source(text, program, program.schedules[0])
    with pytest.raises(FBError) as refused:
        check_source(text.replace(was, now, 1), program, program.schedules[0])
    assert [d.code for d in refused.value.diagnostics] == [code]


def test_what_a_region_makes_again_is_told_apart() -> None:
    """Else XLA would keep %a from the forward: the plan frees it there."""
    program, text = read(AGAIN), source(AGAIN)
    assert twins(program.graph) == {"F1_B1": ("x", "dy", "w")[:2]}
    barrier = "    (x, dy) = lax.optimization_barrier((x, dy))\n"
    assert text.count(barrier) == 1
    with pytest.raises(FBError) as refused:
        check_source(text.replace(barrier, ""), program, program.schedules[0])
    (refusal,) = refused.value.diagnostics
    assert refusal.code == "FB0945"
    assert "F1_B1#1" in refusal.message
    assert "merge" in refusal.message


def test_equal_constants_and_parts_of_views_are_not_told_apart() -> None:
    """They are constants to XLA, or take no storage."""
    constant = "%n = aten.full.default([8, 8], 2.0)\n    %k = aten.neg.default(%n)\n    "
    plain = AGAIN.replace("%a = aten.tanh.default(%t)\n    %m", "%a = aten.sin.default(%x)\n    %m")
    plain = plain.replace("%t = aten.mul.Tensor(%x, %w)\n    %a = aten.sin", "%a = aten.sin")
    plain = plain.replace("fused(%x, %w, %dy)", "fused(%x, %dy)")
    assert twins(read(plain).graph) == {}
    both = plain.replace("%t = aten.mul", f"{constant}%t = aten.mul")
    both = both.replace("%a = aten.sin", f"{constant}%a = aten.sin")
    both = both.replace("aten.tanh.default(%t)", "aten.mul.Tensor(%t, %k)")
    both = both.replace("aten.sin.default(%x)", "aten.mul.Tensor(%x, %k)")
    assert twins(read(both).graph) == {}
    assert "lax.optimization_barrier((x, dy))" not in source(both)


def test_an_operator_that_cannot_stand_inside_is_named() -> None:
    text = TEXT.replace("aten.mul.Tensor(%xv, %w)", "mylib.nothing.default(%xv)")
    text = text.replace("%t, 3, 1)[1]", "%t, 3, 1)[1]\n    %v = aten.mul.Tensor(%w, %w)")
    program = read(text)
    with pytest.raises(FBError) as refused:
        require_lowerings(program.graph)
    (refusal,) = refused.value.diagnostics
    assert (refusal.code, refusal.span and refusal.span.line) == ("FB0920", 10)
    assert "mylib.nothing.default" in refusal.message
    assert "F1, inside" in refusal.message
    assert "docs/guide/jax.md" in (refusal.hint or "")


def test_the_annotated_form_has_regions_too() -> None:
    """JAX derives the backward; the forward's region is one call in its segment."""
    program = read(AGAIN)
    text = source_of_plan(program, program.schedules[0], "annotated-nearest")
    assert '        with jax.named_scope("F1_F2#1"):\n            (a,) = fused0(x, w)\n' in text
    space: dict[str, object] = {"__name__": "step"}
    exec(text, space)
    generator = np.random.default_rng(3)
    x, w, dy = (generator.normal(size=(8, 8)) for _ in range(3))
    _, _, grads, _ = jax.jit(space["step"])({"w": w}, {}, (x,), None, (dy,))  # type: ignore[call-overload]
    given = torch.tensor(w, requires_grad=True)
    a = torch.tanh(torch.tensor(x) * given)
    ((a @ torch.tensor(x)) * a).backward(torch.tensor(dy))
    assert given.grad is not None
    np.testing.assert_allclose(grads["w"], given.grad, rtol=1e-11, atol=1e-12)


def test_a_view_that_stands_outside_of_the_region_too_is_told_apart() -> None:
    program, text = read(VIEWED), source(VIEWED)
    assert twins(program.graph) == {"B1_B2": ("x", "dy")}
    check_source(text, program, program.schedules[0])


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
    assert was in EDITED
    with pytest.raises(FBError) as refused:
        source(EDITED.replace(was, now, 1))
    first = refused.value.diagnostics[0]
    assert (first.code, first.span and first.span.line) == (code, line)
    assert first.hint or code != "FB0733"


def test_results_in_another_order_are_the_same_results() -> None:
    """They are given by name: the values stay those of the calls."""
    text = EDITED.replace("fwd %h, %s = fused", "fwd %s, %h = fused")
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
    path.write_text(EDITED.replace(SCALE, 'aten.mul.Tensor(%t, "1.5")'))
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
