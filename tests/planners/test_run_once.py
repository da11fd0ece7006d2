"""Computations that are to run once, by the user's wish: every planner runs them once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from helpers.planners.matrix import HOMES, budget_of, program_for, program_of
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import Feasible, Optimal, TimedOut, available, parse_planner
from remat_compile.planners.eviction.dtr import Dtr

TIME_LIMIT_S = 1.0
PLANNERS = sorted({*available()} - HOMES)


def ran_again(program: Program, planner: str, budget: Budget) -> list[str]:
    """The forward cNodes that run more than once in its plan; none where there is no plan."""
    result = parse_planner(planner).plan(program, budget, time_limit_s=TIME_LIMIT_S)
    if not isinstance(result, Optimal | Feasible | TimedOut) or result.schedule is None:
        return []
    runs = simulate(program, result.schedule).executions
    return [name for name, count in runs.items() if count > 1]


def wished(graph: str) -> Program:
    """A program in which every other computation that `dtr` runs again is to run once."""
    program = program_of(graph)
    return wishing(program, ran_again(program, "dtr", budget_of(graph, 0.42))[::2])


def wishing(program: Program, once: Iterable[str]) -> Program:
    return replace(program, header=replace(program.header, run_once=tuple(once)))


@pytest.mark.parametrize("graph", ["transformer", "unet"])
@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_runs_once_what_is_to_run_once(planner: str, graph: str) -> None:
    program = program_for(planner, wished(graph))
    again = ran_again(program, planner, budget_of(graph, 0.74))
    assert program.header.run_once
    assert not {*program.header.run_once} & {*again}


def test_others_run_again_in_their_place() -> None:
    assert ran_again(wished("unet"), "dtr", budget_of("unet", 0.74))


def test_a_schedule_that_runs_it_again_is_refused() -> None:
    program = wished("unet")
    result = Dtr().plan(wishing(program, ()), budget_of("unet", 0.42))
    assert isinstance(result, Optimal | Feasible)
    with pytest.raises(FBError) as refused:
        simulate(program, result.schedule)
    told = [d for d in refused.value.diagnostics if d.code == "FB0490"]
    assert {d.message.split()[0] for d in told} == {*program.header.run_once}


def test_the_text_keeps_the_wish() -> None:
    program = wished("unet")
    text = format_program(program)
    assert parse_program(text, "<test>").header == program.header
    first = program.header.run_once[0]
    with pytest.raises(FBError) as refused:
        parse_program(text.replace(f"once {first}", f"once {first}x"), "<test>")
    assert refused.value.diagnostics[0].code == "FB0201"
