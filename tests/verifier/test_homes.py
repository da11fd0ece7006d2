"""Storage of the caller at home on the host: all opinions on random plans, whole and broken."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.home_breaks import BREAKS as HOME_BREAKS
from helpers.verifier.opinions import agrees
from remat_compile.ir.analysis.liveness import floor_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.ir.schedule import Compute, Home, Prefetch, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.report.reasons import of_floor
from remat_compile.report.subject import Subject
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.agreement import written
from remat_compile.verifier.check import Accepted, check

CONFORMANCE = Path(__file__).parents[2] / "spec" / "conformance"
HOMES = (CONFORMANCE / "valid" / "homes.fbir").read_text(encoding="utf-8")
LINK = Target("t", d2h_bytes_per_s=10**9, h2d_bytes_per_s=3 * 10**8, copy_latency_ns=7)


def planned(seed: object, size: int = 4) -> tuple[Program, Schedule]:
    """A valid plan with at least one home; half of the programs add to gradients that are there."""
    rng = Random(f"homes {seed}")
    program = random_program(rng, size=size)
    program = replace(program, target=replace(LINK, granularity_bytes=rng.choice((1, 8, 512))))
    copy, home = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.3, 0.6, 1.0))
    plan = random_schedule(rng, program, copy=copy, home=home)
    return (program, plan) if plan.homes else planned((seed, "again"), size)


def test_four_opinions_agree_on_random_plans() -> None:
    kinds, accumulating = set[str](), 0
    for seed in range(80):
        program, plan = planned(seed, size=7)
        assert agrees(program, plan), seed
        kinds |= {program.graph.anode[name].kind for name in plan.homes}
        accumulating += program.binding.grads == "accumulate"
    assert kinds == {"param", "param_grad", "buffer"}
    assert 20 < accumulating < 60


@pytest.mark.parametrize("part", range(3))
def test_the_proof_has_the_bytes_and_the_time_of_the_simulator(part: int) -> None:
    """And the floor of the checker; one byte less than a peak is refused, on the host too."""
    for seed in range(8 * part, 8 * part + 8):
        program, plan = planned(seed)
        trace, verdict = simulate(program, plan), verify(program, plan, scope="sample")
        assert isinstance(verdict, ProvenPlan), verdict
        bound, claims = verdict.bounds[0], verdict.proven.certificate
        peaks = trace.peak_bytes, trace.activation_peak_bytes, trace.host_peak_bytes
        assert (bound.device_bytes, bound.activation_bytes, bound.host_bytes) == peaks
        opinion = check(written(program, plan), plan.name)
        assert claims is not None
        assert isinstance(opinion, Accepted)
        assert (claims.time_ns, claims.least_bytes) == (trace.time_ns, opinion.least_bytes)
        assert claims.least_bytes <= trace.peak_bytes
        for kind, peak in (("device", peaks[0]), ("host", peaks[2])):
            if peak:
                short = (Budget(peak - 1, kind),)  # type: ignore[arg-type]
                assert isinstance(verify(program, plan, short, scope="sample"), Refuted)


@pytest.mark.parametrize("name", HOME_BREAKS)
def test_every_opinion_refuses_what_breaks_a_home(name: str) -> None:
    refused = 0
    for seed in range(30):
        rng = Random(f"{name} {seed}")
        program, plan = planned(f"{name} {seed}")
        steps = list(plan.steps)
        homes = [step.anode for step in steps if isinstance(step, Home)]
        if HOME_BREAKS[name](rng, program, steps, homes):
            broken = replace(plan, steps=tuple(steps))
            assert not agrees(program, broken), seed
            if refused < 6:  # of the solver, which takes longest
                assert isinstance(verify(program, broken, scope="sample"), Refuted), seed
            refused += 1
    assert refused >= 6


REFUSED = {
    "fb0301_home_not_brought": ["FB0803"],
    "fb0306_home_left_alive": ["FB0813"],
    "fb0312_hostfree_of_a_home": ["FB0859", "FB0819"],
    "fb0312_offload_of_a_home": ["FB0859"],
    "fb0327_after_another_step": ["FB0818"],
    "fb0327_of_an_activation": ["FB0818"],
    "fb0327_of_an_input": ["FB0818"],
    "fb0327_of_an_updated_buffer": ["FB0818"],
    "fb0327_twice": ["FB0818"],
    "fb0328_gradient_given_back": ["FB0819"],
    "fb0328_gradient_never_offloaded": ["FB0819"],
}


@pytest.mark.parametrize("stem", REFUSED)
def test_what_the_language_refuses_is_refuted(stem: str) -> None:
    program = parse_program((CONFORMANCE / "invalid" / f"{stem}.fbir").read_text(encoding="utf-8"))
    verdict = verify(program, program.schedules[0])
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == REFUSED[stem]


def plan_of(name: str, text: str = HOMES) -> tuple[Program, Schedule]:
    program = parse_program(text)
    return program, next(s for s in program.schedules if s.name == name)


@pytest.mark.parametrize("name", ["all", "gradient", "state", "twice"])
def test_the_bytes_of_all_sizes(name: str) -> None:
    """The sizes of homes follow the symbol too: the bound is the most at any of its values."""
    program, plan = plan_of(name, HOMES.replace("bytes 64", "bytes 16*b + 64"))
    traces = [simulate(program, plan, {"b": b}) for b in range(1, 65)]
    peaks = max(t.peak_bytes for t in traces), max(t.host_peak_bytes for t in traces)
    verdict = verify(program, plan, scope="range")
    assert isinstance(verdict, ProvenPlan)
    whole = verdict.bounds[-1]
    assert whole.everywhere
    assert (whole.device_bytes, whole.host_bytes) == peaks
    short = replace(program, target=replace(program.target, host_bytes=peaks[1] - 1))
    assert isinstance(verify(short, plan, scope="range"), Refuted)


def test_no_size_of_random_plans_is_above_the_bound_of_all_sizes() -> None:
    proven = 0
    for seed in range(12):
        program, plan = planned(seed, size=2)
        verdict = verify(program, plan, scope="range", time_limit_s=30)
        if not program.symbols or not isinstance(verdict, ProvenPlan):
            continue
        bound, rng = verdict.bounds[-1], Random(seed)
        for _ in range(10):
            at = {s.name: rng.choice((s.low, s.high, rng.randint(s.low, s.high)))
                  for s in program.symbols}  # fmt: skip
            trace = simulate(program, plan, at)
            assert trace.peak_bytes <= bound.device_bytes
            assert trace.host_peak_bytes <= bound.host_bytes
        proven += 1
    assert proven >= 5


def test_the_floor_does_not_hold_what_is_away() -> None:
    """At B1: %dy 32, %a 128, %dw 64, what is read of the caller's; what he holds on the device."""
    own = 32 + 128 + 64
    held = {
        "all": 128 + 16 + 64,  # %x, %m; B1 reads %s
        "gradient": 128 + 64 + 64 + 16 + 16,  # the gradient that is there already is away
        "state": 128 + 64 + 16 + 16 + 64 + 64,
        "twice": 128 + 64 + 16 + 16 + 64,
    }
    for name, bytes_ in held.items():
        verdict = verify(*plan_of(name))
        assert isinstance(verdict, ProvenPlan)
        assert verdict.proven.certificate is not None
        assert verdict.proven.certificate.least_bytes == own + bytes_
        program, plan = plan_of(name)
        assert floor_bytes(program, homes=plan.homes) == (own + bytes_, "B1")
        owners = of_floor(Subject(program, plan)).owners
        assert sum(owner.bytes for owner in owners) == own + bytes_


def test_what_is_on_the_host_before_the_first_step_counts() -> None:
    """No step copies anything, and the budget of the host breaks all the same."""
    text = HOMES.replace(", %a, %s)", ", %a)")
    text = re.sub(r"schedule @all [^}]*}", "schedule @all { on host %s; F1; F2; L; free %n; "
                  "B1; free %dy; free %a }", text)  # fmt: skip
    program, plan = plan_of("all", text)
    assert simulate(program, plan).during_host == (64,) * 8
    assert isinstance(verify(program, plan, (Budget(64, "host"),), scope="range"), ProvenPlan)
    for scope in ("sample", "range"):
        verdict = verify(program, plan, (Budget(63, "host"),), scope=scope)
        assert isinstance(verdict, Refuted), verdict
        assert {d.code for d in verdict.diagnostics} == {"FB0863"}


def test_a_home_that_is_not_brought_has_a_way_out() -> None:
    """It has no writer, which is what others are told to run."""
    program, plan = plan_of("state", re.sub(r"  (prefetch|wait|free) %s.*\n", "", HOMES))
    with pytest.raises(FBError) as error:
        simulate(program, plan)
    verdict = verify(program, plan)
    assert isinstance(verdict, Refuted)
    for d in (*error.value.diagnostics, *verdict.diagnostics):
        assert d.hint == "put `prefetch %s` and `wait %s` before this step"


def test_steps_are_numbered_with_the_homes_before_them() -> None:
    program, plan = plan_of("all")
    steps = [replace(step, span=None) for step in plan.steps if step != Prefetch("s")]
    at = steps.index(Compute("B1"))
    verdict = verify(program, replace(plan, steps=tuple(steps), span=None))
    assert isinstance(verdict, Refuted)
    assert any(f"B1 at step {at + 1} reads %s" in d.message for d in verdict.diagnostics)


def test_the_gradients_on_the_host_are_named() -> None:
    program, plan = plan_of("gradient")
    trace = simulate(program, plan)
    assert trace.host_at(0) == (("(existing gradients)", 64),)
    assert trace.host_at(trace.host_peak_step) == (("(existing gradients)", 64), ("dw", 64))


def test_the_line_is_read_and_written() -> None:
    """With any blanks between its words, and by both readers: see `test_round_trip`."""
    program, _ = plan_of("all")
    assert parse_program(HOMES.replace("on host", "on \t host")) == program
    assert parse_program(format_program(program)) == program
