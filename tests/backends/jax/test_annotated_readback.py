"""Generated modules with `jax.checkpoint` are read back: each fault is caught."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from helpers.emitted.jax_annotated_faults import FAULTS, faulty
from helpers.execution.random_models import RANDOM_MODELS
from helpers.programs.random_plans import random_plan
from remat_compile.backends.jax.checkpoint.annotated import emit_form
from remat_compile.backends.jax.checkpoint.form import Form, form_of
from remat_compile.backends.jax.lowerings import source_of
from remat_compile.backends.jax.readback.annotated import check_annotated
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule

MODEL = "conv-bn-dropout-tied"
SEED = 3
"""A plan with two segments, values that are kept and values that are offloaded."""


@cache
def program_of(name: str) -> Program:
    with lower(export(*RANDOM_MODELS[name]())) as lowered:
        return lowered.program


@cache
def module_of(name: str, seed: int) -> tuple[Program, Schedule, Form, str]:
    program = program_of(name)
    schedule = random_plan(Random(seed), program, copy=0.1 * (seed % 2))
    program = program.with_schedule(schedule)
    form = form_of(program.graph, schedule)
    return program, schedule, form, emit_form(program, schedule, form, source_of)


def assert_caught(source: str, program: Program, schedule: Schedule, form: Form) -> None:
    with pytest.raises(FBError) as caught:
        check_annotated(source, program, schedule, form)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in ("FB0945", "FB0946")
    assert diagnostic.span is not None
    assert diagnostic.span.line >= 1


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str) -> None:
    program, schedule, form, source = module_of(MODEL, SEED)
    changed = faulty(name, source)
    assert changed is not None, "the plan has no place for it"
    assert_caught(changed, program, schedule, form)


def test_a_form_that_keeps_what_the_schedule_does_not_is_caught() -> None:
    program, schedule, form, _ = module_of(MODEL, SEED)
    wrong = Form(form.starts, form.kept | {"cat"}, form.offloaded - {"cat"})
    with pytest.raises(FBError, match="%cat is kept") as caught:
        emit_form(program, schedule, wrong, source_of)
    assert caught.value.diagnostics[0].code == "FB0945"


def test_a_module_of_other_segments_is_caught() -> None:
    program, schedule, form, source = module_of(MODEL, SEED)
    assert_caught(source, program, schedule, Form((0,), form.kept, form.offloaded))


def test_there_are_forty_kinds_of_faults() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("name", ["conv-bn-dropout-tied", "gpt-dropout-tied"])
def test_forms_of_random_plans_pass(name: str) -> None:
    forms = [module_of(name, seed)[2] for seed in range(6)]
    assert max(len(form.starts) for form in forms) > 2
    assert any(form.offloaded for form in forms)
