"""Generated PyTorch code is read back: correct code passes, and each fault is caught."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from random import Random

import pytest

from helpers.emitted.torch_copy_faults import COPY_FAULTS
from helpers.emitted.torch_faults import FAULTS
from helpers.execution.random_models import RANDOM_MODELS
from helpers.paths import fbir
from helpers.programs.random_plans import random_plan
from helpers.slow import default_only
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.code.interface import saved_at_loss
from remat_compile.backends.torch.readback import check_source
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program


@cache
def program_of(name: str) -> Program:
    with lower(export(*RANDOM_MODELS[name]())) as lowered:
        return lowered.program


@cache
def plan_of(name: str, seed: int, copy: float = 0.0) -> tuple[Program, Schedule, str]:
    program = program_of(name)
    schedule = random_plan(Random(seed), program, copy=copy)
    program = program.with_schedule(schedule)
    return program, schedule, emit(program, schedule)


def fault_found(name: str) -> FBError:
    """What the first random plan that has a place for the fault is refused with."""
    fault, copy = (FAULTS | COPY_FAULTS)[name], 0.1 if name in COPY_FAULTS else 0.0
    for seed in range(60):
        program, schedule, source = plan_of("conv-bn-dropout-tied", seed, copy)
        tree = ast.parse(source)
        if not fault(tree):
            continue
        changed = ast.unparse(ast.fix_missing_locations(tree))
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), "nothing changed"
        with pytest.raises(FBError) as caught:
            check_source(changed, program, schedule)
        return caught.value
    pytest.fail(f"no plan has a place for {name}")


UNREADABLE = ("other_statement", "in_place_method", "other_import", "unknown_method_of_copies")


@pytest.mark.parametrize("name", [*FAULTS, *COPY_FAULTS])
def test_fault_is_caught(name: str) -> None:
    (diagnostic,) = fault_found(name).diagnostics
    assert diagnostic.code == ("FB0946" if name in UNREADABLE else "FB0945"), diagnostic.message
    assert diagnostic.span is not None
    assert diagnostic.span.line >= 1
    assert diagnostic.hint is not None


def test_there_are_twenty_kinds_of_faults() -> None:
    assert len(FAULTS) >= 20
    assert len(COPY_FAULTS) >= 10


@pytest.mark.parametrize(
    "name", default_only(["conv-bn-dropout-tied", "resnet"], ["conv-bn-dropout-tied"])
)
@pytest.mark.parametrize("copy", [0.0, 0.1])
def test_random_plans_pass(name: str, copy: float) -> None:
    for seed in range(12):
        program, schedule, source = plan_of(name, seed, copy)
        saved = check_source(source, program, schedule)
        assert saved == saved_at_loss(program, schedule)


SIZES = (Path(__file__).parent / "sizes.fbir").read_text()


def sizes() -> tuple[Program, Schedule]:
    program = parse_program(SIZES)
    return program, program.schedules[-1]


def test_sizes_pass() -> None:
    assert emit(*sizes())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s = x.shape[0]", "s = x.shape[1]"),
        ("c1 = constants[0]", "c1 = constants[1]"),
        ("a.view(t, s)", "a.view(s, t)"),
        ("// 2", "// 3"),
        ("max(s, t)", "max(s, s)"),
        ("// 8) * 8", "// 8) * 4"),
        ("(-(-(t) // 4))", "((t) // 4)"),
        ("s = args[0]", "s = args[1]"),
        ("s = args[0]", "s = args[7]"),
        ("        s,\n        t,\n", "        t,\n        s,\n"),
        ("PLANNED_PEAK = ", "PLANNED_PEAK = 1"),
        ("('arg', '0'", "('arg', '1'"),
    ],
)
def test_faults_of_sizes_and_constants(old: str, new: str) -> None:
    program, schedule = sizes()
    source = emit(program, schedule)
    assert old in source, source
    with pytest.raises(FBError, match=r"FB0945|FB0946"):
        check_source(source.replace(old, new), program, schedule)


def test_the_place_and_the_step_are_named() -> None:
    program, schedule = sizes()
    source = emit(program, schedule)
    right, wrong = "_aten_mul_Tensor(x, c1)", "_aten_mul_Tensor(x, c2)"
    line = source[: source.index(right)].count("\n") + 1
    with pytest.raises(FBError) as caught:
        check_source(source.replace(right, wrong, 1), program, schedule)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FB0945"
    assert "step 1 (F1: aten.mul.Tensor): argument 2 is %c2, not %c1" in diagnostic.message
    assert diagnostic.span is not None
    assert diagnostic.span.line == line


# -- Fused cNodes in generated PyTorch code -------------------------------------------------------

TEXT = fbir("backends/torch/texts/fused")


def read(text: str = TEXT) -> Program:
    return parse_program(text, "plan.fbir")


def source() -> str:
    program = read()
    return emit(program, program.schedules[0])


def test_each_region_is_a_function() -> None:
    text = source()
    assert (
        """
def fused0(a0, a1, n0):
    t0 = _aten_mul_Tensor(a0, a1)
    (t1, _1,) = _aten_sort_default(t0, 0, False)
    del _1
    (_0, t2,) = _aten_split_Tensor(t0, 3, 1)[:2]
    del _0, t0
    t3 = _aten_full_default([n0, 6], 2.0)
    t4 = _aten_add_Tensor(t1, t3, alpha=2)
    del t1, t3
    t5 = _aten_sum_dim_IntList(t2, [1], True)
    del t2
    t6 = _aten_mul_Tensor(t4, t5)
    del t5
    return (t4, t6,)
"""
        in text
    )
    assert "(h, y,) = fused0(xv, w, b)" in text
    assert "(dw,) = fused1(dy, h)" in text


def test_equal_regions_share_a_function() -> None:
    again = TEXT.replace(
        "  L: loss",
        """  F2: fwd %z = fused(%h, %y) {
    %q = aten.mul.Tensor(%h, %y)
    %z = aten.neg.default(%q)
  }
  F3: fwd %v = fused(%z, %y) {
    %t = aten.mul.Tensor(%z, %y)
    %v = aten.neg.default(%t)
  }
  L: loss""",
    ).replace(
        "  %dy :",
        "  %z : act f32[b, 6] bytes 24*b\n  %v : act f32[b, 6] bytes 24*b\n  %dy :",
    )
    program = read(again.replace("{ F1; L", "{ F1; F2; F3; free %z; free %v; L"))
    text = emit(program, program.schedules[0])
    assert text.count("def fused") == 3
    assert "(z,) = fused1(h, y)" in text
    assert "(v,) = fused1(z, y)" in text


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("_aten_mul_Tensor(a0, a1)\n    (t1", "_aten_mul_Tensor(a1, a0)\n    (t1"),
        ("alpha=2", "alpha=3"),
        ("return (t4, t6,)", "return (t6, t4,)"),
        ("(_0, t2,) = _aten_split", "(t2, _0,) = _aten_split"),
        ("[n0, 6]", "[6, n0]"),
        ("fused1(dy, h)", "fused1(h, dy)"),
        ("fused0(xv, w, b)", "fused0(xv, w, 4)"),
        ("(a0, a1)\n    t1 = _aten_sum", "(a0, a0)\n    t1 = _aten_sum"),
    ],
)
def test_code_of_another_region_is_refused(was: str, now: str) -> None:
    program, text = read(), source()
    assert was in text
    check_source(text, program, program.schedules[0])
    with pytest.raises(FBError) as refused:
        check_source(text.replace(was, now), program, program.schedules[0])
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0945"
    assert diagnostic.span is not None


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("    t5 = _aten_sum", "    print(t4)\n    t5 = _aten_sum"),
        ("def fused0(a0, a1, n0):", "def fused0(a0, a1, n0=4):"),
        ("(t1, _1,) = _aten_sort", "t1 = _aten_sort"),
    ],
)
def test_code_that_has_no_meaning_is_refused(was: str, now: str) -> None:
    program, text = read(), source()
    assert was in text
    with pytest.raises(FBError) as refused:
        check_source(text.replace(was, now), program, program.schedules[0])
    assert {d.code for d in refused.value.diagnostics} == {"FB0946"}


def refusal(text: str) -> tuple[str, int | None, str]:
    def emitted() -> str:
        program = read(text)
        return emit(program, program.schedules[0])

    with pytest.raises(FBError) as refused:
        emitted()
    (diagnostic,) = refused.value.diagnostics
    return (
        diagnostic.code,
        None if diagnostic.span is None else diagnostic.span.line,
        diagnostic.message,
    )


def test_random_operators_do_not_stand_inside() -> None:
    random = "%t = aten.bernoulli.default(%xv)\n    %v = aten.mul.Tensor(%t, %w)"
    text = TEXT.replace("%t = aten.mul.Tensor(%xv, %w)", random)
    code, line, message = refusal(text)
    assert (code, line) == ("FB0914", 11)
    assert message.startswith("F1, inside: aten.bernoulli.default draws random numbers")


@pytest.mark.parametrize(
    ("operator", "code"),
    [("mylib.nothing.default", "FB0901"), ("c10d.broadcast_.default", "FB0942")],
)
def test_operators_inside_are_looked_at(operator: str, code: str) -> None:
    summary = refusal(TEXT.replace("aten.mul.Tensor(%xv", f"{operator}(%xv"))
    assert summary[:2] == (code, 11)
    assert "F1, inside" in summary[2]
