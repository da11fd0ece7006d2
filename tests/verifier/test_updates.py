"""Updates of an optimizer: all opinions on random plans, whole and broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from helpers.paths import CONFORMANCE
from helpers.programs.random_updates import stirred, with_random_updates
from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.happens_before import races_by_enumeration, races_by_reachability
from helpers.verifier.opinions import agrees
from helpers.verifier.update_breaks import BREAKS
from remat_compile.ir.analysis.liveness import floor_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.ir.schedule import Compute, Home, Schedule, Step
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.agreement import written
from remat_compile.verifier.check import Accepted, Refused, check

UPDATES = (CONFORMANCE / "valid" / "updates.fbir").read_text(encoding="utf-8")
PLANS = ("device", "homed", "cpu", "mixed")
LINKS = (
    Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=3 * 10**8, copy_latency_ns=7),
    Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, both_bytes_per_s=13 * 10**8),
    Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, copy_issue_ns=5, copy_latency_ns=3),
    Target("t", d2h_bytes_per_s=10**8, both_bytes_per_s=10**7, copy_issue_ns=900),
)


def planned(seed: object, size: int = 3) -> tuple[Program, Schedule]:
    """A valid plan with updates; two thirds with homes, half of whose updates run on the host."""
    rng = Random(f"updates {seed}")
    program = with_random_updates(rng, random_program(rng, size=size))
    target = replace(rng.choice(LINKS), granularity_bytes=rng.choice((1, 8, 512)))
    program = replace(program, target=target)
    copy, home = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.7, 1.0))
    plan = random_schedule(rng, program, copy=copy, home=home)
    return program, stirred(rng, program, plan, 15)


def kinds_of(program: Program, steps: tuple[Step, ...]) -> Counter[str]:
    """How many updates run on the device, and on the host."""
    kinds = Counter[str]()
    for step in steps:
        if isinstance(step, Compute) and program.graph.cnode[step.cnode].is_update:
            kinds["host" if step.on_host else "device"] += 1
    return kinds


def test_four_opinions_agree_on_random_plans() -> None:
    kinds = Counter[str]()
    for seed in range(60):
        program, plan = planned(seed, size=5)
        assert agrees(program, plan), seed
        kinds += kinds_of(program, plan.steps)
    assert kinds["device"] > 40
    assert kinds["host"] > 10
    for name in PLANS:
        program, plan = plan_of(name, UPDATES.replace("bytes 64", "bytes 6400"))
        floor, where = floor_bytes(program, homes=plan.homes)
        assert floor <= simulate(program, plan).peak_bytes
        assert name != "cpu" or where == "F1"


def test_the_time_of_updates_on_the_host() -> None:
    """U1 and U2 one after the other beside the device: only the waits cost it their time."""
    late = simulate(*plan_of("cpu")).time_ns
    doubled = parse_program(UPDATES.replace("on host 5us", "on host 10us"))
    assert simulate(doubled, doubled.schedules[2]).time_ns == late + 5000
    slow = parse_program(UPDATES.replace("on host 2us", "on host 20us"))
    # U2 begins 4.64us after U1, of which 3us are B1 and 1.64us the offload of %dv.
    assert simulate(slow, slow.schedules[2]).time_ns == late + 20_000 - 4640
    device = parse_program(UPDATES.replace("0) time 1us", "0) time 9us"))
    assert simulate(device, device.schedules[2]).time_ns == late
    assert simulate(device, device.schedules[0]).time_ns == 8000 + 9000 + 9000


def test_an_update_is_told_where_no_step_has_a_place() -> None:
    program, plan = plan_of("cpu")
    steps = [replace(step, span=None) for step in plan.steps if step != Home("m")]
    verdict = verify(program, replace(plan, steps=tuple(steps), span=None))
    assert isinstance(verdict, Refuted)
    number = 1 + next(i for i, s in enumerate(steps) if isinstance(s, Compute) and s.cnode == "U2")
    assert f"U2 on host at step {number}: the host holds no copy of %m" in {
        d.message for d in verdict.diagnostics
    }


@pytest.mark.parametrize("alone", [True, False])
def test_both_readers_read_what_the_printer_writes(alone: bool) -> None:
    program = parse_program(UPDATES)
    text = format_program(program)
    assert 'update(%w, %m, %dw, "torch.optim.SGD", 0) time 1us on host 5us' in text
    assert "\n  U2 on host\n" in text
    assert read_syntax(text, by_grammar_alone=alone) == program
    assert read_syntax(UPDATES.replace("on host", "on \t host"), by_grammar_alone=alone) == program
    for seed in range(10):
        program, plan = planned(seed)
        program = program.with_schedule(plan)
        assert read_syntax(format_program(program), by_grammar_alone=alone) == program
