"""Generated JAX code is read back: correct code passes, and each fault is caught."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.jax_annotated_faults import FAULTS as FORM_FAULTS
from helpers.emitted.jax_annotated_faults import faulty as faulty_form
from helpers.emitted.jax_faults import FAULTS, faulty
from helpers.execution.random_models import RANDOM_MODELS
from helpers.programs.random_plans import random_plan
from remat_compile.backends.jax.checkpoint.annotated import emit_form
from remat_compile.backends.jax.checkpoint.form import Form, form_of
from remat_compile.backends.jax.emit import groups
from remat_compile.backends.jax.emit.module import emit
from remat_compile.backends.jax.emit.twins import twins
from remat_compile.backends.jax.lowerings import source_of
from remat_compile.backends.jax.readback.annotated import check_annotated
from remat_compile.backends.jax.readback.explicit import check_source
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Offload, Schedule


@cache
def program_of(name: str) -> Program:
    with lower(export(*RANDOM_MODELS[name]())) as lowered:
        return lowered.program


@cache
def plan_of(name: str, seed: int) -> tuple[Program, Schedule, str]:
    program = program_of(name)
    schedule = random_plan(Random(seed), program, copy=0.1 * (seed % 2))
    program = program.with_schedule(schedule)
    return program, schedule, emit(program, schedule, source_of)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(name: str) -> None:
    for seed in range(20):
        program, schedule, source = plan_of("conv-bn-dropout-tied", seed)
        changed = faulty(name, source)
        if changed is None:
            continue
        with pytest.raises(FBError) as caught:
            check_source(changed, program, schedule)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code in ("FB0945", "FB0946")
        assert diagnostic.span is not None
        assert diagnostic.span.line >= 1
        return
    pytest.fail(f"no plan has a place for {name}")


def test_there_are_twenty_kinds_of_faults() -> None:
    assert len(FAULTS) >= 20


@pytest.mark.parametrize("name", ["conv-bn-dropout-tied", "gpt-fused"])
def test_random_plans_pass(name: str) -> None:
    plans = [plan_of(name, seed) for seed in range(8)]
    assert any(isinstance(s, Offload) for _, schedule, _ in plans for s in schedule.steps)


class Twice(nn.Module):
    """The same computation of the same values, in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.sin(self.inner(x))
        again = torch.sin(self.inner(x))
        return (kept.cumsum(0) * again).sum()


def test_two_computations_that_are_the_same_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """XLA would merge them, and keep what the plan frees in between."""
    with lower(export(Twice(), (torch.randn(3, 4),), {})) as lowered:
        program = lowered.program
    order = capture_order(program.graph)
    schedule = Schedule("plan", "", frees_after_last_use(program.graph, order))
    program = program.with_schedule(schedule)
    assert "aten.sin.default" in {program.graph.cnode[c].call.op for c in twins(program.graph)}
    check_source(emit(program, schedule, source_of), program, schedule)
    monkeypatch.setattr(groups, "twins", lambda graph: {})
    with pytest.raises(FBError, match="XLA would merge the two"):
        check_source(emit(program, schedule, source_of), program, schedule)


# -- Modules of the annotated style are read back --------------------------------------------------


MODEL = "conv-bn-dropout-tied"
SEED = 3
"""A plan with two segments, values that are kept and values that are offloaded."""


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


@pytest.mark.parametrize("name", FORM_FAULTS)
def test_fault_of_a_form_is_caught(name: str) -> None:
    program, schedule, form, source = module_of(MODEL, SEED)
    changed = faulty_form(name, source)
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
    assert len(FORM_FAULTS) >= 40


@pytest.mark.parametrize("name", ["conv-bn-dropout-tied", "gpt-dropout-tied"])
def test_forms_of_random_plans_pass(name: str) -> None:
    forms = [module_of(name, seed)[2] for seed in range(6)]
    assert max(len(form.starts) for form in forms) > 2
    assert any(form.offloaded for form in forms)
