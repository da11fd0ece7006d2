"""Generated PyTorch code of a plan with copies, run as it is, with an engine of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from helpers.execution.random_models import RANDOM_MODELS
from helpers.programs.offloading import offload_everything
from helpers.programs.random_plans import random_plan
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.code.interface import default_interface
from remat_compile.backends.torch.runtime import CopyEngine, HostCopies, host_layout
from remat_compile.backends.torch.runtime.call import Arena
from remat_compile.capture.torch import export, lower
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.operators.executor import execute, ones


@dataclass(frozen=True)
class CopiedStep:
    """A plan, its code, and what its step gives when every copy is made at once."""

    program: Program
    schedule: Schedule
    values: Mapping[str, Tensor]
    source: str
    wanted: Mapping[str, Tensor]

    def run(
        self, engine: CopyEngine, source: str | None = None
    ) -> tuple[dict[str, Tensor], HostCopies]:
        """Results and gradients by name of the code, or of `source`, and the copies' state."""
        program, interface = self.program, default_interface(self.program)
        space: dict[str, Any] = {"__name__": "step"}
        exec(compile(source or self.source, "step", "exec"), space)
        layout = host_layout(program, self.schedule)
        copies = HostCopies(engine, Arena(engine, layout.size_bytes), layout.slots)
        constants = tuple(self.values[a.name] for a in program.graph.anodes if a.kind == "const")
        torch.manual_seed(3)
        with torch.no_grad():
            args = [None if n is None else self.values[n].detach() for n in interface.inputs]
            made = space["forward"]([*args, copies], constants)
            values = dict(zip(interface.outputs, made, strict=False))
            saved = list(made[len(interface.outputs) :])
            del made
            loss = ones(program, program.sample)
            results = {r.name: values[r.name] for r in program.binding.results}
            tangents = dict(loss(results))
            args = [*saved, *(tangents.pop(name) for name in interface.tangents)]
            saved.clear()
            grads = space["backward"](args, constants)
        named = zip(interface.grads, grads, strict=True)
        values |= {name: grad for name, grad in named if name is not None}
        return {name: values[name] for name in self.wanted}, copies

    def is_right(self, values: Mapping[str, Tensor]) -> bool:
        return all(torch.equal(values[name], wanted) for name, wanted in self.wanted.items())


def step_of(program: Program, schedule: Schedule, values: Mapping[str, Tensor]) -> CopiedStep:
    torch.manual_seed(3)
    done = execute(program, schedule.steps, values, write_back=False)
    wanted = dict(zip((r.name for r in program.binding.results), done.results, strict=True))
    wanted |= {p.grad: done.param_grads[p.name] for p in program.binding.params if p.grad}
    wanted |= {name: done.input_grads[index] for index, name in program.binding.input_grads}
    return CopiedStep(program, schedule, values, emit(program, schedule), wanted)


@cache
def _lowered(name: str) -> tuple[Program, Mapping[str, Tensor]]:
    with lower(export(*RANDOM_MODELS[name]())) as lowered:
        return lowered.program, lowered.values()


@cache
def copied_step(name: str, seed: int) -> CopiedStep:
    """A random plan with copies of a model of `RANDOM_MODELS`."""
    program, values = _lowered(name)
    schedule = random_plan(Random(seed), program, copy=0.1)
    assert any(not isinstance(step, Compute) and step.copies for step in schedule.steps)
    return step_of(program, schedule, values)


@cache
def offloading_step(name: str) -> CopiedStep:
    """The plan of a model that copies every activation to the host and back."""
    program, values = _lowered(name)
    return step_of(program, offload_everything(program), values)
