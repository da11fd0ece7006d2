"""The reference interpreter agrees with the simulator, and sees what a schedule can get wrong."""

from __future__ import annotations

from random import Random

import pytest

from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.breaks import BREAKS
from helpers.verifier.reference import harm, interpret, unplanned
from helpers.verifier.step_text import PLAN, schedule
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget
from remat_compile.ir.semantics.simulate import simulate


def test_random_schedules_do_no_harm_and_peak_as_simulated() -> None:
    for seed in range(60):
        rng = Random(seed)
        program = random_program(rng)
        plan = random_schedule(rng, program)
        assert harm(program, plan) == []
        trace, run = simulate(program, plan), interpret(program, plan)
        assert tuple(run.device) == trace.during
        assert tuple(run.activation) == trace.during_activation


@pytest.mark.parametrize("name", BREAKS)
def test_broken_schedules_do_harm_where_the_simulator_refuses_them(name: str) -> None:
    """The simulator may refuse what happens to do no harm, never the other way round."""
    harmful = 0
    for seed in range(40):
        rng = Random(f"{name} {seed}")
        program = random_program(rng, size=6)
        plan = random_schedule(rng, program)
        steps = list(plan.steps)
        BREAKS[name](rng, steps)
        broken = type(plan)(plan.name, "", tuple(steps))
        reasons = harm(program, broken)
        try:
            simulate(program, broken)
        except FBError:
            assert reasons, f"{seed}: refused, but does no harm"
            harmful += 1
        else:
            assert not reasons, (seed, reasons)
    assert harmful >= 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("F3\nF4\nfree %d\nfree %r", "free %r\nF3\nF4\nfree %d"), "reads %r"),
        (("free %c\n", ""), "%c is left behind"),
        (("B3\nfree %de", "B3\nB3\nfree %de"), None),
        (("L\nfree %nrm", "L\nL\nfree %nrm"), "the loss ran 2 times"),
        (("B1\n", ""), 'gradient of "w" differs'),
        (("F5\n", "F5\nfree %y\n"), "result 0 when handed over differs"),
    ],
)
def test_harm_is_named(change: tuple[str, str], reason: str | None) -> None:
    assert change[0] in PLAN
    reasons = harm(*schedule(PLAN.replace(*change)))
    assert any(reason in why for why in reasons) if reason else reasons == []


def test_a_byte_too_many_is_harm() -> None:
    program, plan = schedule()
    peak = interpret(program, plan).peak()
    assert harm(program, plan, Budget(peak)) == []
    assert harm(program, plan, Budget(peak - 1)) == [f"{peak} device bytes of {peak - 1}"]


def test_the_unplanned_step_gives_everything_back() -> None:
    program, _ = schedule()
    assert harm(program, unplanned(program)) == []
