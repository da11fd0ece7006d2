"""Writes `tests/verifier/mutants/plans`: correct plans of the eight models of `helpers.models`.

    python tests/runners/make_mutant_plans.py

The files are kept, so that the mutants need neither PyTorch nor a planner and do not change
with them. Each holds a graph and two plans: three segments, and the least memory for which
`dtr` finds a plan, the latter with `nosave` where it frees all phantoms at once.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import remat_compile
from helpers.models import BASE, MODELS
from helpers.verifier.mutants.case import PLANS
from remat_compile.ir.graph import Graph
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Free, Schedule, Step
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import Feasible, Infeasible, Optimal, parse_planner


def with_nosave(graph: Graph, schedule: Schedule) -> Schedule:
    """The same plan, `nosave` in place of frees of all phantoms right after their writer."""
    steps: list[Step] = []
    todo = list(schedule.steps)
    while todo:
        step = todo.pop(0)
        if isinstance(step, Compute):
            phantoms = {n for n in graph.cnode[step.cnode].results
                        if graph.anode[n].kind == "phantom"}  # fmt: skip
            frees = []
            while todo and isinstance(todo[0], Free):
                frees.append(todo.pop(0))
            if phantoms and phantoms <= {f.anode for f in frees if isinstance(f, Free)}:
                step = replace(step, nosave=True)
                frees = [f for f in frees if isinstance(f, Free) and f.anode not in phantoms]
            steps += [step, *frees]
        else:
            steps.append(step)
    return replace(schedule, steps=tuple(steps))


def planned(program: Program, budget: Budget | None, name: str, planner: str) -> Schedule:
    answer = parse_planner(planner).plan(program, budget)
    assert isinstance(answer, Feasible | Optimal), answer
    return replace(answer.schedule, name=name)


def plans(name: str) -> str:
    module, args, kwargs = MODELS[name](torch.float32)
    made = remat_compile.plan(module, args, kwargs, planner="store-all")
    program = replace(made.program, schedules=(), proven=())
    answer = parse_planner("dtr").plan(program, Budget(1))
    assert isinstance(answer, Infeasible)
    assert answer.min_budget is not None
    least = answer.min_budget.bytes
    segments = planned(program, None, "segments", "periodic{segments=3}")
    tight = with_nosave(program.graph, planned(program, Budget(least), "least", "dtr"))
    for schedule in (segments, tight):
        trace = simulate(program, schedule)
        again = sum(trace.executions.values()) - len(trace.executions)
        print(f"{name} @{schedule.name}: {len(schedule.steps)} steps, {again} run again")
        program = program.with_schedule(schedule)
    return format_program(program)


def main() -> None:
    torch.set_num_threads(1)
    PLANS.mkdir(exist_ok=True)
    for name in BASE:
        (PLANS / f"{name}.fbir").write_text(plans(name), encoding="utf-8")


if __name__ == "__main__":
    main()
