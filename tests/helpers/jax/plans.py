"""Plans for JAX: captured once per model, planned in many ways, and what PyTorch gives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from helpers.execution.captures import ROOFLINE, planned
from helpers.models import MODELS, SMALL, no_dropout
from remat_compile import Budget, Plan
from remat_compile.backends.jax.checkpoint.annotated import fitting_form
from remat_compile.backends.jax.checkpoint.form import schedule_of as schedule_of_form
from remat_compile.backends.jax.kernels import RegionBytes, Shapes, XlaPrice
from remat_compile.backends.jax.observe.compiled import ObservedStep
from remat_compile.backends.jax.observe.predict import live_bytes, predicted_temp_bytes
from remat_compile.backends.jax.runtime.arrays import to_numpy
from remat_compile.backends.jax.runtime.step import JaxStep
from remat_compile.ir.graph import Graph
from remat_compile.ir.schedule import Schedule
from remat_compile.planners.contract import Infeasible, NotApplicable, Planner
from remat_compile.planners.registry import parse_planner
from remat_compile.plans.budget import parse_budget, resolve_budget
from remat_compile.plans.jax.fuse import fused_for_xla
from remat_compile.plans.jax.run import inspect_compiled
from remat_compile.plans.jax.source import source_of_plan
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Phases

Make = Callable[[torch.dtype], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Captured:
    """A model without dropout, the plan that recomputes nothing, and PyTorch's gradients.

    `grads` are of random tangents; `tangents` and `args` are those that JAX gets too.
    """

    base: Plan
    params: Mapping[str, jax.Array]
    buffers: Mapping[str, jax.Array]
    args: tuple[jax.Array, ...]
    tangents: tuple[jax.Array | None, ...]
    outputs: tuple[Tensor, ...]
    grads: Mapping[str, np.ndarray[Any, Any]]

    @property
    def scale(self) -> float:
        return max(float(np.abs(g).max()) for g in self.grads.values())

    def difference(self, grads: Mapping[str, Any]) -> float:
        """The largest difference from PyTorch, as a share of the largest gradient."""
        assert {name for name, g in grads.items() if g is not None} == set(self.grads)
        gaps = (
            np.abs(np.asarray(grads[n], np.float64) - g.astype(np.float64)).max()
            for n, g in self.grads.items()
        )
        return float(max(gaps)) / self.scale


@dataclass(frozen=True, eq=False)
class Case:
    """A plan of a captured model, and its step."""

    model: Captured
    plan: Plan
    step: JaxStep

    def run(self, compiled: Callable[..., Any] | None = None) -> Any:
        """Outputs, new buffers, gradients, gradients of inputs."""
        m = self.model
        options = self.step.compiler_options
        run = compiled or jax.jit(self.step.generated, compiler_options=options)
        return run(dict(m.params), dict(m.buffers), m.args, None, m.tangents)

    def looked_at(self) -> tuple[ObservedStep, Callable[..., Any]]:
        """What XLA makes of the step, compiled once."""
        return _looked_at(self)

    @property
    def predicted(self) -> int:
        """With what XLA takes for each computation by itself, as `run --backend jax` predicts; of
        the annotated form, for the plan that it stands for."""
        program, schedule = self.plan.program, self.plan.schedule
        if not self.step.is_explicit:
            form = fitting_form(program, schedule, nearest=True)
            schedule = schedule_of_form(program.graph, form, "nearest", "")
        figures = XlaPrice(Shapes(program), _MEASURED).figures()
        return predicted_temp_bytes(program, schedule, figures=figures)

    @property
    def live(self) -> int:
        """What the plan has alive at once."""
        return live_bytes(self.plan.program, self.plan.schedule)

    @property
    def floor(self) -> int:
        """The least temporary bytes that any schedule of the model has: the floor of the
        whole step without what is no temporary."""
        base = self.model.base
        held = base.baseline.peak_bytes - live_bytes(base.program, base.schedule)
        return base.baseline.floor_bytes - held


_MEASURED: dict[str, RegionBytes] = {}
"""By region: what XLA makes of computations by themselves, once in a process."""


@cache
def _looked_at(made: Case) -> tuple[ObservedStep, Callable[..., Any]]:
    return inspect_compiled(made.step, made.plan)


@cache
def captured(name: str, dtype: torch.dtype = torch.float64) -> Captured:
    """`name` of `models.MODELS`, `small-NAME` of `SMALL`, or `hf-NAME` of `HF_MODELS` with 128
    tokens, with every dropout off."""
    if name.startswith("small-"):
        return capture(SMALL[name.removeprefix("small-")], dtype)
    if name.startswith("hf-"):
        from helpers.jax.hf_models import HF_MODELS

        make = HF_MODELS[name.removeprefix("hf-")]
        return capture(lambda dtype: make(dtype, dropout=False, ids=(8, 16)), dtype)
    return capture(MODELS[name], dtype)


def capture(make: Make, dtype: torch.dtype) -> Captured:
    module, args, kwargs = make(dtype)
    no_dropout(module)
    with planned(module, args, kwargs, planner="store-all", **ROOFLINE) as (base, lowered):
        held = lowered.values()
    binding = base.program.binding
    eager, args, kwargs = make(dtype)
    no_dropout(eager)
    outputs = tuple(tree_leaves(eager(*args, **kwargs)))
    trained = [o for o in outputs if o.requires_grad]
    generator = torch.Generator().manual_seed(3)
    tangents = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in trained]
    torch.autograd.backward(trained, tangents)
    of = iter(tangents)
    return Captured(
        base,
        {p.names[0]: jax.device_put(to_numpy(held[p.name])) for p in binding.params},
        {b.names[0]: jax.device_put(to_numpy(held[b.name])) for b in binding.buffers},
        tuple(jax.device_put(to_numpy(held[a.name])) for a in binding.arguments),
        tuple(
            None if r.tangent is None else jax.device_put(to_numpy(next(of)))
            for r in binding.results
        ),
        outputs,
        {n: to_numpy(p.grad) for n, p in eager.named_parameters() if p.grad is not None},
    )


def case(name: str, planner: str, budget: str | None = None, style: Any = "explicit") -> Case:
    """A model of `captured` in float64 under a planner."""
    return _case(name, planner, budget, style)


@cache
def _case(name: str, planner: str, budget: str | None, style: Any) -> Case:
    model = captured(name)
    return as_case(model, schedule_of(model, parse_planner(planner), budget), style)


@cache
def fused_case(name: str, planner: str, budget: str | None = None) -> Case:
    """The same with regions for XLA, as `fuse="xla"` makes them."""
    model = captured(name)
    return as_fused_case(model, parse_planner(planner), budget)


def as_fused_case(model: Captured, planner: Planner, budget: str | None) -> Case:
    schedule = schedule_of(model, planner, budget)
    bound = None if budget is None else resolve_budget(parse_budget(budget), model.base.baseline)
    program = model.base.program.with_schedule(schedule)
    plan = replace(model.base, program=program, schedule=schedule, budget=bound)
    fused = fused_for_xla(plan, PlanRequest(planner, fuse="xla"), Phases(None))
    source = source_of_plan(fused.program, fused.schedule)
    return Case(model, fused, JaxStep(fused.program, source, model.params, model.buffers, None))


def schedule_of(model: Captured, planner: Planner, budget: str | None) -> Schedule:
    base = model.base
    bound: Budget | None = None
    if budget is not None:
        bound = resolve_budget(parse_budget(budget), base.baseline)
    answer = planner.plan(base.program, bound)
    assert not isinstance(answer, Infeasible | NotApplicable), answer
    assert answer.schedule is not None
    return answer.schedule


def as_case(model: Captured, schedule: Schedule, style: Any = "explicit") -> Case:
    """What `remat_compile.jax_step` gives, but that it does not trace the model again."""
    program = model.base.program.with_schedule(schedule)
    plan = replace(model.base, program=program, schedule=schedule, _is_proven=False)
    proven = plan.trusted()
    source = source_of_plan(proven.program, proven.schedule, style)
    step = JaxStep(proven.program, source, model.params, model.buffers, None)
    return Case(model, plan, step)


def repeated(graph: Graph, schedule: Schedule) -> int:
    """How many executions are not the first of their cNode."""
    computed = [s.cnode for s in schedule.steps if hasattr(s, "cnode")]
    return len(computed) - len(set(computed))


def run_python(script: str | Path, *arguments: str, **environment: str) -> Any:
    import os
    import subprocess

    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )
