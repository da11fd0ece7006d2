"""Two implementations of one meaning: the simulator runs, the verifier proves."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.programs.strategies import random_program, random_schedule, scheduled
from helpers.slow import default_only
from helpers.verifier.breaks import BREAKS
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.verifier import ProvenPlan, Refuted, verify


def _simulated(program: Program, schedule: Schedule) -> Trace | None:
    try:
        return simulate(program, schedule)
    except FBError:
        return None


@settings(max_examples=20)
@given(scheduled())
def test_valid_schedules_are_proven_with_the_simulated_peaks(
    case: tuple[Program, Schedule],
) -> None:
    program, schedule = case
    trace = simulate(program, schedule)
    verdict = verify(program, schedule)
    assert isinstance(verdict, ProvenPlan), verdict
    at_sample = verdict.bounds[0]
    assert at_sample.env == program.sample
    assert at_sample.device_bytes == trace.peak_bytes
    assert at_sample.activation_bytes == trace.activation_peak_bytes


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("seeds", default_only([range(3), range(3, 20)], [range(3)]))
def test_broken_schedules_get_the_same_verdict(name: str, seeds: range) -> None:
    refuted = 0
    for seed in seeds:
        rng = Random(f"{name} {seed}")
        program = random_program(rng, size=6)
        schedule = random_schedule(rng, program)
        steps = list(schedule.steps)
        for _ in range(1 + rng.randrange(2)):
            BREAKS[name](rng, steps)
        broken = replace(schedule, steps=tuple(steps))
        trace = _simulated(program, broken)
        verdict = verify(program, broken)
        if trace is None:
            assert isinstance(verdict, Refuted), (seed, verdict)
            refuted += 1
        else:
            assert isinstance(verdict, ProvenPlan), (seed, verdict)
            assert verdict.bounds[0].device_bytes == trace.peak_bytes
            assert verdict.bounds[0].activation_bytes == trace.activation_peak_bytes
    assert refuted >= 1, "this way of breaking a schedule breaks too few"


@settings(max_examples=12)
@given(scheduled(), st.sampled_from(("device", "activation")))
def test_one_byte_less_than_the_peak_is_refuted_where_the_simulator_peaks(
    case: tuple[Program, Schedule], kind: str
) -> None:
    program, schedule = case
    trace = simulate(program, schedule)
    if kind == "device":
        exact, during, code = Budget(trace.peak_bytes), trace.during, "FB0820"
    else:
        exact = Budget(trace.activation_peak_bytes, "activation")
        during, code = trace.during_activation, "FB0821"
    assert isinstance(verify(program, schedule, (exact,)), ProvenPlan)
    short = replace(exact, bytes=exact.bytes - 1)
    verdict = verify(program, schedule, (short,))
    assert isinstance(verdict, Refuted)
    assert {d.code for d in verdict.diagnostics} == {code}
    names = [
        step.cnode if isinstance(step, Compute) else ""
        for step, size in zip(schedule.steps, during, strict=True)
        if size == exact.bytes
    ]
    for diagnostic in verdict.diagnostics:
        assert diagnostic.message.split(" ")[0] in names


def test_every_owner_of_a_peak_is_named_with_the_simulators_bytes() -> None:
    """The bytes in the notes add up to the bytes in the message, and each is a live tensor's."""
    for seed in range(25):
        rng = Random(seed)
        program = random_program(rng, size=6)
        schedule = random_schedule(rng, program)
        trace = simulate(program, schedule)
        short = Budget(trace.peak_bytes - 1)
        verdict = verify(program, schedule, (short,))
        assert isinstance(verdict, Refuted)
        counts = [
            int(note.message.split(" ")[0])
            for note in verdict.diagnostics[0].notes
            if note.message.split(" ")[1].startswith("bytes")
        ]
        assert sum(counts) == trace.peak_bytes
