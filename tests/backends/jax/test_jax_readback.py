"""Generated JAX code is read back: correct code passes, and each fault is caught."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from helpers.emitted.jax_faults import FAULTS, faulty
from helpers.execution.random_models import RANDOM_MODELS
from helpers.programs.random_plans import random_plan
from remat_compile.backends.jax.emit.module import emit
from remat_compile.backends.jax.lowerings import source_of
from remat_compile.backends.jax.readback.explicit import check_source
from remat_compile.frontends.torch_export import export, lower
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
