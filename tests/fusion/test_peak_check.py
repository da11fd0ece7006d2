"""What is tried by the hundred is judged as by the simulator: whether it is valid, its peaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from helpers.programs.hand_built import batch_norm_program, dropout_program
from helpers.programs.random_plans import random_plan
from helpers.programs.random_programs import random_program
from remat_compile.fusion.peak_check import PeakCheck, Peaks
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Schedule, Step
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program

MUCH = 1 << 60


def simulated(program: Program, steps: Sequence[Step]) -> Peaks | str:
    """Its peaks, or the codes of all that is wrong."""
    try:
        trace = simulate(program, Schedule("s", "", tuple(steps)))
    except FBError as error:
        return " ".join(sorted({d.code for d in error.diagnostics}))
    return trace.peak_bytes, trace.activation_peak_bytes


def changed(rng: Random, steps: Sequence[Step]) -> list[Step]:
    """With a step moved, left out, put in again, or with its `nosave` turned."""
    made = [*steps]
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(made))
        step = made[at]
        way = rng.randrange(4)
        if way == 3 and isinstance(step, Compute):
            made[at] = replace(step, nosave=not step.nosave)
        if way in (0, 1):
            del made[at]
        if way in (0, 2):
            made.insert(rng.randint(0, len(made)), step)
    return made


def alike(program: Program, check: PeakCheck, steps: Sequence[Step]) -> str:
    """Holds the two against each other; what it was, in a word."""
    peaks = simulated(program, steps)
    if isinstance(peaks, str):
        assert not check.within((MUCH, MUCH), steps)
        return peaks
    device, activation = peaks
    assert check.within(peaks, steps)
    assert not check.within((device - 1, activation), steps)
    assert not check.within((device, activation - 1), steps)
    return "valid"


@pytest.mark.parametrize("copy", [0.0, 0.3])
def test_it_says_what_the_simulator_says(copy: float) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(150):
        rng = Random(seed)
        program = random_program(rng)
        plan, check = random_plan(rng, program, copy=copy), PeakCheck(program)
        assert alike(program, check, plan.steps) == "valid"
        for _ in range(8):
            kinds[alike(program, check, changed(rng, plan.steps))] += 1
    assert kinds["valid"] > 300
    assert {"FB0301", "FB0302", "FB0305", "FB0306", "FB0309"} <= kinds.keys()


@pytest.mark.parametrize("made", [dropout_program, batch_norm_program])
def test_random_numbers_and_buffers_count_as_they_do_there(made: Callable[[], Program]) -> None:
    program = made()
    check, kinds = PeakCheck(program), Counter[str]()
    for seed in range(300):
        rng = Random(seed)
        kinds[alike(program, check, changed(rng, random_plan(rng, program).steps))] += 1
    assert kinds["valid"] > 100


TEXT = """fbir 1
graph @g {
  %x : input u8[10] bytes 10
  %rm : buffer u8[1] bytes 1
  %a : act u8[4] bytes 4
  %r : rng u8[30] bytes 30
  %b : act u8[2] bytes 2
  %s : rng u8[30] bytes 30
  %n : pending u8[1] bytes 1
  %y : output u8[4] bytes 4
  %dy : tangent u8[4] bytes 4
  %g : grad u8[10] bytes 10
  %c : grad u8[10] bytes 10
  %d : grad u8[10] bytes 10
  F1: fwd %a = drop(%x) token %r
  F2: fwd %b = drop(%x) token %s workspace 3
  F3: fwd %n = norm(%rm)
  F4: fwd %y = sum(%a, %b, %rm)
  L: loss %dy = loss(%y, %n)
  B1: bwd %g = f(%dy)
  B2: bwd %c = g(%dy)
  B3: bwd %d = accumulate(%g, %c)
}
bind {
  arg "args[0]" = %x
  buffer "rm" = %rm update %n
  result %y tangent %dy
}
schedule @p { STEPS }
"""
BEGIN = "F1; F2; F3; F4; free %a; free %b; L; free %n;"
END = "B1; B2; free %dy; B3; free %c; free %d"


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        (f"{BEGIN} {END}", "valid"),
        (f"F1; {BEGIN} {END}; free %r", "valid"),
        (f"{BEGIN} F1; free %a; {END}", "FB0306"),
        (f"{BEGIN} free %r; F1; free %a; {END}", "FB0301"),  # what its numbers began from
        (f"{BEGIN} F1; free %a; free %r; {END}", "valid"),
        (f"F1; {BEGIN} {END}", "FB0306"),
        (f"F2; F1; F3; F4; free %a; free %b; L; free %n; {END}", "FB0311"),
        (f"{BEGIN} F3; free %n; {END}", "FB0303"),
        (BEGIN + END.replace("B3;", "F4; B3;"), "FB0301 FB0303"),
        (f"{BEGIN} free %y; {END}", "FB0302"),  # which the caller has
        (f"{BEGIN} free %x; {END}", "FB0302"),
        (f"{BEGIN} B1; B2; B3; free %dy; free %c; free %g", "FB0302 FB0306"),
        (f"{BEGIN} B1; B2; B3; B1; B3; free %dy; free %c; free %d; free %g", "FB0302 FB0304"),
        (BEGIN.replace("F2; ", "").replace("free %b;", "") + END, "FB0301 FB0310"),
        (f"{BEGIN} free %dy", "valid"),
    ],
)
def test_each_rule_by_itself(steps: str, verdict: str) -> None:
    program = parse_program(TEXT.replace("STEPS", steps))
    assert alike(program, PeakCheck(program), program.schedules[0].steps) == verdict
