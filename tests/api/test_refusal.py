"""What a user is told where there is no plan: what would fit, what holds it up, and who can."""

from __future__ import annotations

import re

import pytest

from helpers.planners.graphs import chain, residual, transformer
from remat_compile import FBError
from remat_compile.api import plan_program
from remat_compile.ir.analysis.liveness import (
    counted_sizes,
    held_beside,
    lower_bound_bytes,
    working_set,
)
from remat_compile.ir.diagnostics import Diagnostic
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.sizes import Sizes
from remat_compile.ir.wording import on_command_line
from remat_compile.planners import parse_planner
from remat_compile.planners.contract import Infeasible, TimedOut
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.plans.budget import parse_budget
from remat_compile.plans.request import PlanRequest
from remat_compile.plans.run_planner import Phases


def refused(program: Program, planner: str, budget: str) -> Diagnostic:
    bound = parse_budget(budget, "activation")
    with pytest.raises(FBError) as caught:
        plan_program(
            program, PlanRequest(parse_planner(planner), bound, time_limit_s=20.0), Phases()
        )
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_the_least_budget_is_the_least_that_is_known() -> None:
    program = transformer(1)
    diagnostic = refused(program, "chen", "5%")
    assert diagnostic.code == "FB0466"
    said = "\n".join(note.message for note in diagnostic.notes)
    own, best = (int(n) for n in re.findall(r"the least it found is (\d+) bytes", said))
    assert best < own
    hint = on_command_line(diagnostic).hint
    assert hint == f"give --activation-budget {best}B or more, and --planner dtr or auto"
    assert diagnostic.hint == f'give activation_budget="{best}B" or more, and planner="dtr" or auto'
    made = plan_program(
        program,
        PlanRequest(parse_planner("dtr"), parse_budget(f"{best}B", "activation")),
        Phases(),
    )
    assert made.activation_peak_bytes <= best


def test_it_says_what_holds_the_memory_and_where_it_was_made() -> None:
    for planner in ("store-all", "dtr", "auto"):
        diagnostic = refused(residual(), planner, "5%")
        said = [note.message for note in diagnostic.notes]
        assert any(re.match(r"the memory is held at step \d+, ", line) for line in said)
        assert any(re.search(r"\d+ bytes +%\w+ \(\w+\), made at model.py:\d+", s) for s in said)
        assert any(re.match(r"no plan of any planner needs less than \d+ bytes: ", s) for s in said)
        assert any("with nothing recomputed the step takes" in line for line in said)


def test_the_note_on_the_floor_says_what_is_carried_and_what_the_caller_holds() -> None:
    """The last backward but one of six layers reads both sides of its layer; the result, %x6, is
    the caller's from the loss on."""
    result = Dtr(rounds=0).plan(chain(6), Budget(1, "device"))
    assert isinstance(result, Infeasible)
    assert result.floor_bytes == 420 + 100 + 220
    assert result.why.notes[-1].message == (
        "no plan of any planner needs less than 740 bytes: B8 (toy.op.default) at model.py:9 "
        '"layer8" works on %x4, %x5, %d5, %d4, %dw4 (420 bytes with its workspace); 100 bytes are '
        "carried through it for what runs later: %x6; the caller holds 220 bytes"
    )


@pytest.mark.parametrize("program", [residual(), transformer(2)])
def test_what_is_carried_is_named_and_adds_up(program: Program) -> None:
    floor, where = lower_bound_bytes(program, "activation")
    held = held_beside(program, "activation", where)
    working = working_set(program.graph, program.graph.cnode[where])
    sizes = counted_sizes(program, "activation", Sizes.of(program))
    assert floor == sum(sizes[a] for a in (*working, *held)) + Sizes.of(program).workspace[where]
    assert held
    assert not held.keys() & set(working)


def test_where_another_planner_fits_the_budget_it_is_named() -> None:
    diagnostic = refused(chain(8), "store-all", "60%")
    hint = on_command_line(diagnostic).hint
    assert hint == "dtr finds a plan within it: give --planner dtr, or auto"
    assert diagnostic.hint == 'dtr finds a plan within it: give planner="dtr", or auto'


def test_a_planner_that_ran_out_of_time_is_not_said_to_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dtr, "plan", lambda *_, **__: TimedOut(None, 0, None))
    diagnostic = refused(chain(8), "store-all", "60%")
    assert diagnostic.code == "FB0466"
    assert "dtr finds a plan" not in (diagnostic.hint or "")


def test_a_planner_that_does_not_apply_says_so_and_who_does() -> None:
    diagnostic = refused(chain(1), "rotor", "60%")
    assert diagnostic.code == "FB0409"
    assert "rotor plans chains of blocks" in diagnostic.message
    assert diagnostic.hint is not None
    assert "dtr" in diagnostic.hint
