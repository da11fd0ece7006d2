"""A small training step with everything that a schedule can get wrong, as text."""

from __future__ import annotations

from dataclasses import replace

from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import Verdict, verify

GRAPH = """\
fbir 1
captured device cpu threads 1 torch "2.13.0" costs none
target "cpu" { granularity 16 }

graph @step {
  %x : input f32[8] bytes 32
  %w : param f32[8] bytes 64
  %rm : buffer f32[4] bytes 16
  %h : act f32[8] bytes 100
  %hm : phantom u8[8] bytes 10
  %n : act f32[8] bytes 200
  %nrm : pending f32[4] bytes 16
  %d : act f32[8] bytes 300
  %dm : phantom u8[8] bytes 30
  %r : rng u8[50] bytes 50
  %e : act f32[8] bytes 300
  %q : rng u8[50] bytes 50
  %y : output f32[8] bytes 40
  %dy : tangent f32[8] bytes 40
  %de : grad f32[8] bytes 300
  %g1 : grad f32[8] bytes 64
  %c : grad f32[8] bytes 64
  %dw : param_grad f32[8] bytes 64
  F1: fwd %h, %hm = aten.relu.default(%x, %w) workspace 5 at m.py:3 "fc"
  F2: fwd %n, %nrm = ns.norm(%h, %rm) replay { %n = ns.norm_again(%h) } at m.py:4 "bn"
  F3: fwd %d, %dm = aten.native_dropout.default(%n, 0.1, true) token %r at m.py:5 "drop"
  F4: fwd %e, _ = aten.native_dropout.default(%d, 0.1, true) token %q at m.py:6 "drop2"
  %ev = view of %e aten.t.default(%e)
  F5: fwd %y = aten.mm.default(%ev, %w) at m.py:7 "head"
  L: loss %dy = loss(%y, %nrm)
  B5: bwd %de = aten.mm.default(%dy, %w) of F5
  B3: bwd %g1 = aten.mul.Tensor(%de, %dm) of F3
  B3b: bwd %c = aten.sum.default(%g1, %ev, %n) of F3
  B1: bwd %dw = accumulate(%g1, %c) of F1
}

bind {
  arg "x" = %x
  param "w" = %w grad %dw
  buffer "rm" = %rm update %nrm
  result %y tangent %dy
  grads fresh
}
"""

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
