"""Computations that may be fused stand next to each other, at no cost in bytes."""

from __future__ import annotations

from collections import Counter
from random import Random

from helpers.programs.random_plans import random_plan
from helpers.programs.random_programs import random_program
from remat_compile.fusion import gathered
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode
from remat_compile.ir.schedule import Compute
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program

TEXT = """fbir 1
graph @g {
  %x : input f32[64] bytes 256
  %w : param f32[64] bytes 256
  %a : act f32[64] bytes 256
  %y : output f32[64] bytes 256
  %dy : tangent f32[64] bytes 256
  %g : grad f32[64] bytes 256
  %h : grad f32[64] bytes 256
  %s : grad f32[1] bytes SIZE
  %dw : param_grad f32[64] bytes 256
  F1: fwd %a = aten.mul.Tensor(%x, %w)
  F2: fwd %y = aten.mm.default(%a)
  L: loss %dy = loss(%y)
  B1: bwd %g = aten.mul.Tensor(%dy, %a)
  B2: bwd %h = aten.mm.default(%g) workspace 100
  B3: bwd %s = aten.sum.default(%g)
  B4: bwd %dw = aten.mm.default(%h, %s)
}
bind {
  arg "args[0]" = %x
  param "w" = %w grad %dw
  result %y tangent %dy
}
schedule @p { F1; F2; L; B1; free %dy; free %a; B2; B3; free %g; B4; free %h; free %s }
"""


def pointwise(c: CNode) -> bool:
    return ".mm." not in c.call.op and not c.is_loss


def order(size: int) -> list[str]:
    program = parse_program(TEXT.replace("SIZE", str(size)))
    steps = gathered(program, program.schedules[0], pointwise).steps
    return [s.cnode for s in steps if isinstance(s, Compute)]


def test_a_reader_moves_up_to_the_maker() -> None:
    assert order(4) == ["F1", "F2", "L", "B1", "B3", "B2", "B4"]


def test_unless_the_peak_would_rise() -> None:
    assert order(2048) == ["F1", "F2", "L", "B1", "B2", "B3", "B4"]


def test_random_plans_stay_valid_and_take_no_byte_more() -> None:
    moved = 0
    for seed in range(30):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_plan(rng, program, copy=0.1 * (seed % 2))
        some = {c.name for c in program.graph.cnodes if rng.random() < 0.6}
        try:
            before = simulate(program, schedule)
        except FBError:
            continue  # a rare order of repeated accumulations
        made = gathered(program, schedule, lambda c, some=some: c.name in some)  # type: ignore[misc]
        after = simulate(program, made)
        moved += made.steps != schedule.steps
        assert Counter(made.steps) == Counter(schedule.steps)
        assert after.peak_bytes <= before.peak_bytes
        assert after.activation_peak_bytes <= before.activation_peak_bytes
    assert moved > 3
