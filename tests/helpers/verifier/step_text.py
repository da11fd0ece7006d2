"""A small training step with everything that a schedule can get wrong, as text."""

from __future__ import annotations

from dataclasses import replace

from helpers.paths import fbir
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import Verdict, verify

GRAPH = fbir("helpers/verifier/texts/steps")

PLAN = """\
F1 nosave
F2
free %h
F3
free %n
free %dm
F4
free %d
F5
free %e
L
free %nrm
B5
free %dy
F1
free %hm
F2
free %h
F3
F4
free %d
free %r
free %q
B3
free %de
free %dm
B3b
free %n
free %e
B1
free %c
"""
"""A valid plan of it: dropouts and the normalisation run twice."""


SCHEDULE = 'schedule @plan by "hand" {'


def text_of(plan: str = PLAN, graph: str = GRAPH) -> str:
    """The file: graph and plan, each step on a line of its own."""
    lines = "\n".join(f"  {line}" for line in plan.splitlines())
    return f"{graph}\n{SCHEDULE}\n{lines}\n}}\n"


def schedule(plan: str = PLAN, graph: str = GRAPH) -> tuple[Program, Schedule]:
    """The program and its one schedule."""
    made = parse_program(text_of(plan, graph), "step.fbir")
    return made, made.schedules[0]


def verdict(plan: str = PLAN, *budgets: Budget, graph: str = GRAPH) -> Verdict:
    return verify(*schedule(plan, graph), budgets)


def without_spans(plan: Schedule) -> Schedule:
    """The same steps as a planner makes them, with no place in a text."""
    return Schedule(plan.name, plan.planner, tuple(replace(s, span=None) for s in plan.steps))
