"""Executes random proven plans of small models and compares each with eager.

A failure is a plan that is refuted, code that differs from its plan when read back, a crash, a
bit that differs from eager, or more bytes than were proven, on the device or the host. In JAX
the plans are compared with PyTorch's own step in float64.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch

import remat_compile
from helpers.execution.random_models import RANDOM_MODELS
from helpers.programs.random_plans import KINDS, kinds_of, random_plan
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.text.printer import format_program
from remat_compile.plans.bind import bind
from remat_compile.plans.compare.step import compare_step

Execute = Callable[[str, int, Plan], "Outcome"]
COPIED = 0.1
"""How often plans copy what could be copied."""


@dataclass(frozen=True)
class Outcome:
    """What one plan did. `failure` is empty where outputs, gradients and buffers equal those
    of eager (with PyTorch in every bit, and the measured bytes are within those proven).
    `tensors` counts what was compared."""

    model: str
    seed: int
    failure: str
    kinds: Counter[str]
    tensors: int = 0


@dataclass
class Tally:
    """Outcomes by model and by kind of step."""

    plans: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    tensors: Counter[str] = field(default_factory=Counter)
    steps: dict[str, Counter[str]] = field(default_factory=dict)
    having: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.plans[outcome.model] += 1
        self.failed[outcome.model] += bool(outcome.failure)
        self.tensors[outcome.model] += outcome.tensors
        self.steps.setdefault(outcome.model, Counter()).update(outcome.kinds)
        self.having.update(kind for kind, count in outcome.kinds.items() if count)

    def table(self) -> str:
        """Markdown: plans and failures per model, then steps per kind."""
        lines = ["| model | plans | failed | tensors compared |", "|---|---|---|---|"]
        for model, count in self.plans.items():
            lines.append(f"| {model} | {count} | {self.failed[model]} | {self.tensors[model]} |")
        total, failed = self.plans.total(), self.failed.total()
        lines += [f"| all | {total} | {failed} | {self.tensors.total()} |", ""]
        lines += ["| step | steps | plans with one |", "|---|---|---|"]
        for kind in KINDS:
            steps = sum(counts[kind] for counts in self.steps.values())
            lines.append(f"| {kind} | {steps} | {self.having[kind]} |")
        return "\n".join(lines)


def captured(name: str, dtype: torch.dtype = torch.float32) -> Plan:
    """A model of `RANDOM_MODELS` with the plan that recomputes nothing."""
    module, args, kwargs = RANDOM_MODELS[name](dtype=dtype)
    return remat_compile.plan(module, args, kwargs, planner="store-all", costs="measured")


def plans_of(base: Plan, seeds: range, *, copy: float = 0.0) -> Iterator[tuple[int, Plan]]:
    """Random plans of one captured model, by their seeds; those of odd seeds may copy."""
    for seed in seeds:
        schedule = random_plan(Random(seed), base.program, copy=copy * (seed % 2))
        program = base.program.with_schedule(schedule)
        yield seed, replace(base, program=program, schedule=schedule, _is_proven=False)


def execute(model: str, seed: int, plan: Plan, *, by_calls: bool = False) -> Outcome:
    """Proves a plan, builds its code, runs a step and compares it with eager's; fused cNodes
    `by_calls`, or as kernels."""
    kinds = kinds_of(plan.program, plan.schedule)
    assert plan._exported is not None
    try:
        proven = plan.trusted()
        compiled = bind(proven.program, proven.schedule, plan._exported, by_calls=by_calls)
        report = compare_step(proven, compiled, plan._exported, 1)
    except (FBError, RuntimeError, NameError, TypeError, ValueError) as error:
        return Outcome(model, seed, f"{type(error).__name__}: {error}", kinds)
    assert proven.proven is not None
    bound = proven.proven.device_bytes
    assert isinstance(compiled, PlannedModule)
    copies = compiled.planned_step.copies
    host = 0 if copies is None else copies.last_host_peak_bytes
    failure = ""
    if not report.bit_equal:
        failure = f"differs from eager by {report.max_difference:.2e}"
    elif report.measured_bytes > bound:
        failure = f"{report.measured_bytes} bytes measured, {bound} proven"
    elif host != proven.host_peak_bytes:
        failure = f"{host} host bytes measured, {proven.host_peak_bytes} proven"
    return Outcome(model, seed, failure, kinds, report.tensors)


def executed_in_jax(base: Plan) -> Execute:
    """What proves a plan of a model in float64, and compares its step in JAX."""
    from helpers.execution.in_jax import difference, float64, stored_values

    with float64():
        stored = stored_values(base)
    results = sum(len(stored[k]) for k in ("output", "new_buffer", "grad", "input_grad"))

    def execute_one(model: str, seed: int, plan: Plan) -> Outcome:
        kinds = kinds_of(plan.program, plan.schedule)
        try:
            with float64():
                distance, allowed = difference(plan.trusted(), stored)
        except (FBError, RuntimeError, NameError, TypeError, ValueError, SystemExit) as error:
            return Outcome(model, seed, f"{type(error).__name__}: {error}", kinds)
        failure = "" if distance <= allowed else f"differs from PyTorch by {distance:.2e}"
        return Outcome(model, seed, failure, kinds, results)

    return execute_one


def run_all(count: int, first_seed: int, keep: Path | None) -> tuple[Tally, list[Outcome]]:
    """Runs `count` plans in PyTorch, as many of each model; failing plans are written to
    `keep`."""
    return _run(count, first_seed, keep, lambda name: (captured(name), execute), COPIED)


def run_all_in_jax(count: int, first_seed: int, keep: Path | None) -> tuple[Tally, list[Outcome]]:
    """The same in JAX, in float64."""

    def made(name: str) -> tuple[Plan, Execute]:
        base = captured(name, torch.float64)
        return base, executed_in_jax(base)

    return _run(count, first_seed, keep, made, COPIED)


def _run(
    count: int,
    first_seed: int,
    keep: Path | None,
    made: Callable[[str], tuple[Plan, Execute]],
    copy: float,
) -> tuple[Tally, list[Outcome]]:
    tally, failures = Tally(), []
    names = list(RANDOM_MODELS)
    for place, name in enumerate(names):
        share = count // len(names) + (place < count % len(names))
        base, execute_one = made(name)
        for seed, plan in plans_of(base, range(first_seed, first_seed + share), copy=copy):
            outcome = execute_one(name, seed, plan)
            tally.add(outcome)
            if outcome.failure:
                failures.append(outcome)
                print(f"{name} {seed}: {outcome.failure}", file=sys.stderr)
                if keep is not None:
                    path = keep / f"{name}_{seed}.fbir"
                    path.write_text(format_program(plan.program), encoding="utf-8")
    return tally, failures


def missing_kinds(having: Counter[str]) -> list[str]:
    """The kinds of step that no plan has, and that should be there."""
    return [kind for kind in KINDS if not having[kind]]
