"""`budget="auto"`: the bytes it stands for, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

import remat_compile
from remat_compile.costs import load_device
from remat_compile.ir.diagnostics import FBError
from remat_compile.plans.budget import parse_budget
from remat_compile.plans.fit.auto import RESERVE, with_auto_budget
from remat_compile.plans.options import Errors
from remat_compile.plans.request import PlanRequest, read_request

ROOFLINE: dict[str, Any] = {"costs": "roofline", "device": "t4", "cache": False}
GIB = 1 << 30


def net() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    layers = (m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh()))
    return nn.Sequential(*layers), (torch.ones(500, 64),)


def auto() -> PlanRequest:
    errors = Errors()
    request = read_request(errors, budget="auto")
    errors.raise_if_any()
    assert request is not None
    return request


def test_the_device_named_less_libraries_reserve_and_states() -> None:
    plan = remat_compile.plan(*net(), budget="auto", planner="dtr", **ROOFLINE)
    (told,) = [d for d in plan.warnings if d.code == "FB0970"]
    memory, libraries = load_device("t4").memory_bytes, plan.fit().library_bytes or 0
    states = 2 * sum(p.nbytes for p in net()[0].parameters())
    assert plan.budget is not None
    assert plan.budget.bytes == memory - libraries - int(RESERVE * memory) - states
    lines = [note.message.split(":")[0].split()[0] for note in told.notes]
    assert lines == ["budget", "recompute", "offload", "fuse", "peak"]


@pytest.mark.parametrize("steps", [False, True])
def test_a_device_at_hand_is_asked(steps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget: free memory and the model's own bytes, less the reserve and unplanned states."""
    plan = remat_compile.plan(*net(), planner="store-all", **ROOFLINE)
    on_gpu = replace(plan.program.header, device="cuda:0", costs="measured")
    there = replace(plan.program.target, memory_bytes=None)
    program = replace(plan.program, header=on_gpu, target=there)
    told: Callable[[torch.device], tuple[int, int]] = lambda device: (3 * GIB, 16 * GIB)  # noqa: E731
    monkeypatch.setattr("remat_compile.device.memory.free_memory", told)
    request, budget = with_auto_budget(auto(), program, steps=steps)
    sizes = plan.trace.anode_bytes
    held = sum(sizes[a.name] for a in plan.graph.anodes if a.kind in ("param", "input", "buffer"))
    states = 0 if steps else 2 * sum(p.nbytes for p in net()[0].parameters())
    assert budget is not None
    assert budget.bytes == 3 * GIB + held - int(RESERVE * 16 * GIB) - states
    assert request.budget is not None
    assert request.budget.amount == Fraction(budget.bytes)


def test_on_the_cpu_it_is_refused_before_anything_is_measured() -> None:
    for call in (remat_compile.plan, remat_compile.compile):
        with pytest.raises(FBError) as refused:
            call(*net(), budget="auto", cache=False)
        (diagnostic,) = refused.value.diagnostics
        assert diagnostic.code == "FB0969"
        assert 'write budget="8GiB"' in str(diagnostic.hint)


def test_it_bounds_all_bytes_of_one_plan() -> None:
    for kind in ("activation", "host"):
        with pytest.raises(FBError):
            parse_budget("auto", kind, may_be_least=True)  # type: ignore[arg-type]
    with pytest.raises(FBError):
        parse_budget("auto")
