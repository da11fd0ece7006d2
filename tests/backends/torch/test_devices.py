"""Code for a device draws random numbers again from that device's generator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from torch import nn

from helpers.programs.random_plans import random_plan
from remat_compile.backends.python.allowed import check_generated
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.code.allowed import allowed
from remat_compile.backends.torch.code.script import replay_helper
from remat_compile.backends.torch.readback import check_source
from remat_compile.capture.torch import export, lower
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule


@cache
def dropout_again() -> tuple[Program, Schedule]:
    """A plan that computes dropout a second time."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
    with lower(export(model, (torch.ones(2, 4),))) as lowered:
        program = lowered.program
    plans = (random_plan(Random(seed), program) for seed in range(100))
    return program, next(plan for plan in plans if "replay(rng" in emit(program, plan))


@pytest.mark.parametrize(
    ("device", "module"),
    [
        ("cpu", "torch"),
        ("cuda", "torch.cuda"),
        ("cuda:1", "torch.cuda"),
        ("xpu", "torch.xpu"),
        ("mps", "torch.mps"),
        ("__import__('os')", "torch"),
    ],
)
def test_generated_code_asks_the_generator_of_its_device(device: str, module: str) -> None:
    program, plan = dropout_again()
    program = replace(program, header=replace(program.header, device=device))
    source = emit(program, plan)
    assert source.count(".get_rng_state()") == source.count(f" {module}.get_rng_state()") > 1
    check_generated(source, allowed(program, plan, replay_helper(program)))
    check_source(source, program, plan)
