"""Random valid programs and schedules, for Hypothesis and for loops over seeds.

`programs()` draws a program with views, phantoms, tokens, replay forms, buffer updates,
accumulation chains and symbols; `scheduled()` draws a program together with a valid
schedule of it (recomputation, `nosave`, early and late frees), `copying()` one with copies
to the host and back. `random_program(rng)` and `random_schedule(rng, program)` do the same
with any `random.Random`.

    from helpers.programs.strategies import programs, scheduled
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from helpers.programs.random_programs import random_expr, random_program
from helpers.programs.random_schedules import random_schedule
from remat_compile.ir.expr import Expr
from remat_compile.ir.program import Budget, Certificate, Program, Proven
from remat_compile.ir.schedule import Schedule

__all__ = ["copying", "exprs", "programs", "random_program", "random_schedule", "scheduled"]


@st.composite
def programs(draw: st.DrawFn, *, size: int = 5, schedules: int = 0) -> Program:
    """Well-formed programs with that many valid schedules in them, the first one proven."""
    rng = draw(st.randoms(use_true_random=False))
    program = random_program(rng, size=size)
    for index in range(schedules):
        program = program.with_schedule(random_schedule(rng, program, name=f"plan{index}"))
    if schedules and rng.random() < 0.5:
        proven = Proven("plan0", ("validity", "memory"), 10**9, 12345, "z3 5.4.0", "ab" * 32)
        if rng.random() < 0.5:
            proven = replace(proven, host_bytes=rng.randrange(1, 10**6))
        if rng.random() < 0.5:
            budgets = (Budget(10**9), Budget(12345, "activation"))
            ranges = tuple((s.name, s.low, s.high) for s in program.symbols)
            certificate = Certificate(1500, 1000, 77, budgets, ranges, "0.1.0", "cd" * 32)
            proven = replace(proven, certificate=certificate)
        program = replace(program, proven=(proven,))
    return program


@st.composite
def scheduled(draw: st.DrawFn, *, size: int = 5) -> tuple[Program, Schedule]:
    """A program and a valid schedule of it (which is also its only one)."""
    program = draw(programs(size=size, schedules=1))
    return program, program.schedules[0]


@st.composite
def copying(draw: st.DrawFn, *, size: int = 5) -> tuple[Program, Schedule]:
    """The same with copies to the host and back, at some rate; half of them with homes there."""
    rng = draw(st.randoms(use_true_random=False))
    program = random_program(rng, size=size)
    copy, home = rng.choice((0.1, 0.3, 0.6)), rng.choice((0.0, 0.5))
    schedule = random_schedule(rng, program, copy=copy, home=home)
    return program.with_schedule(schedule), schedule


@st.composite
def exprs(draw: st.DrawFn, *, symbols: tuple[str, ...] = ("b", "s"), depth: int = 3) -> Expr:
    return random_expr(draw(st.randoms(use_true_random=False)), symbols, depth)
