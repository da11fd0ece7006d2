"""Obligation 4: races of other systems as plans, and the proof against two other ways."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.programs.strategies import copying, random_program, random_schedule
from helpers.verifier.happens_before import races_by_enumeration, races_by_reachability
from remat_compile.ir.diagnostics import FBError, render
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import CopyStep, Free, Home, HostFree, Schedule, Step, Wait
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import ProvenPlan, Refuted, Undecided, verify
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.races import Racing, encode_races, prove_races
from remat_compile.verifier.read.events import read_homes, unfold
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import NoModel

FILES = sorted((Path(__file__).parent / "races").glob("*.fbir"))
SPEC = Path(__file__).parents[2] / "spec" / "conformance"


def races_by_z3(program: Program, schedule: Schedule) -> set[tuple[int, int, str, str]]:
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    statements = read_homes(statements, schedule)
    assert isinstance(statements, Statements)
    events = unfold(statements, schedule)
    assert isinstance(events, list)
    answer = prove_races(statements, events, Inquiry(60))
    if isinstance(answer, NoModel):
        return set()
    assert isinstance(answer, Racing)
    return {(r.copy.issued, r.use.event, r.use.side, r.use.anode) for r in answer.races}


def broken(rng: Random, schedule: Schedule) -> Schedule:
    """The schedule with some of its copies, waits and frees moved, left out or repeated.
    Its homes stay in front: FB0818 refuses any other place before races are asked for."""
    homes: list[Step] = [step for step in schedule.steps if isinstance(step, Home)]
    steps: list[Step] = [step for step in schedule.steps if not isinstance(step, Home)]
    for _ in range(1 + rng.randrange(3)):
        kinds = rng.choice(((Wait,), (Free, HostFree), (CopyStep,)))
        places = [i for i, step in enumerate(steps) if isinstance(step, kinds)]
        if not places:
            continue
        at = rng.choice(places)
        match rng.randrange(4):
            case 0:
                del steps[at]
            case 1:
                steps.insert(rng.randrange(len(steps) + 1), steps[at])
            case _:
                step = steps.pop(at)
                steps.insert(max(0, min(len(steps), at + rng.randrange(-6, 7))), step)
    return replace(schedule, steps=(*homes, *steps))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_races_of_others_are_refuted(path: Path) -> None:
    """Codes and places stand in the first line of the file."""
    text = path.read_text(encoding="utf-8")
    expected = text.split("\n", 1)[0].removeprefix("// expect ")
    program = parse_program(text, path.name)
    verdict = verify(program, program.schedules[0])
    if expected == "proven":
        assert isinstance(verdict, ProvenPlan)
        assert "races" in verdict.proven.obligations
        return
    assert isinstance(verdict, Refuted)
    places = [f"{d.code} at {d.span.line}:{d.span.column}" for d in verdict.diagnostics if d.span]
    assert "; ".join(places) == expected
    with pytest.raises(FBError):
        simulate(program, program.schedules[0])


def test_a_race_is_told_on_the_text() -> None:
    """Both steps, the order that goes wrong, whose bytes they are next, and the late wait."""
    path = next(path for path in FILES if path.stem == "torchtune_1867")
    text = path.read_text(encoding="utf-8")
    program = parse_program(text, path.name)
    verdict = verify(program, program.schedules[0])
    assert isinstance(verdict, Refuted)
    (diagnostic,) = verdict.diagnostics
    lines = text.split("\n")
    assert diagnostic.span is not None
    assert lines[diagnostic.span.line - 1] == "  free %a"
    assert "give back the bytes of %a while its offload still reads them" in diagnostic.message
    noted = [
        (n.message, lines[n.span.line - 1].strip() if n.span else "") for n in diagnostic.notes
    ]
    assert noted == [
        ("the offload begins here, and takes as long as it takes", "offload %a"),
        ("this step may be given the same bytes", "F3"),
        (
            "it goes wrong in this order: offload %a begins; free %a; F3 writes there; "
            "the copy of %a ends",
            "",
        ),
        ("its wait comes only here", "wait %a"),
    ]
    assert diagnostic.hint == "move `wait %a` before it"
    assert "^" in render(diagnostic, text)


def test_one_missing_wait_is_one_diagnostic() -> None:
    """Further steps that race with the same copy are notes."""
    path = next(path for path in FILES if path.stem == "right")
    text = re.sub(r"  wait %a\n  hostfree %a\n  B2", "  hostfree %a\n  B2", path.read_text())
    program = parse_program(text)
    verdict = verify(program, program.schedules[0])
    assert isinstance(verdict, Refuted)
    messages = [(d.code, d.message) for d in verdict.diagnostics]
    assert messages == [
        (
            "FB0862",
            "hostfree %a may give back the host copy of %a while its prefetch still reads it",
        ),
        ("FB0860", 'B2 may read %a before its prefetch has written it'),
        ("FB0857", "a copy of %a is in flight at the end of @plan"),
    ]  # fmt: skip
    notes = [n.message for n in verdict.diagnostics[1].notes]
    assert "the same for this step" in notes
    assert "no step waits for the prefetch of %a" in notes


def test_a_plan_without_places_is_told_by_step_numbers() -> None:
    path = next(path for path in FILES if path.stem == "torchtune_1867")
    program = parse_program(path.read_text(encoding="utf-8"))
    plan = program.schedules[0]
    bare = Schedule("plan", "", tuple(replace(step, span=None) for step in plan.steps))
    verdict = verify(program, bare)
    assert isinstance(verdict, Refuted)
    (diagnostic,) = verdict.diagnostics
    assert diagnostic.message.startswith("free %a at step 4 may give back")
    assert "F3 (step 6) writes there" in diagnostic.notes[2].message


def test_the_order_of_a_stream_counts() -> None:
    """Copies in one direction end in order, so the wait for a later one orders the earlier
    one too: no race. The plan is refused by validity, which wants a wait of its own."""
    text = next(path for path in FILES if path.stem == "right").read_text(encoding="utf-8")
    program = parse_program(text)
    steps = list(program.schedules[0].steps)
    first, second = (next(i for i, s in enumerate(steps) if s == Wait(n)) for n in "ab")
    freed = next(i for i, s in enumerate(steps) if s == Free("a"))
    assert first < freed < second
    steps[first], steps[second] = steps[second], steps[first]
    plan = Schedule("plan", "", tuple(steps))
    assert races_by_z3(program, plan) == races_by_reachability(program, plan) == set()
    verdict = verify(program, plan)
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == ["FB0851"]


def test_the_other_direction_orders_nothing() -> None:
    """A wait for a copy back says nothing of a copy out that began before it."""
    text = next(path for path in FILES if path.stem == "right").read_text(encoding="utf-8")
    program = parse_program(text)
    steps = list(program.schedules[0].steps)
    out = next(i for i, s in enumerate(steps) if s == Wait("b"))
    steps.insert(next(i for i, s in enumerate(steps) if s == HostFree("b")), steps.pop(out))
    plan = Schedule("plan", "", tuple(steps))
    races = races_by_z3(program, plan)
    assert races == races_by_reachability(program, plan)
    assert {(side, name) for _, _, side, name in races} == {("device", "b"), ("host", "b")}


@settings(max_examples=40)
@given(copying(size=4), st.randoms(use_true_random=False))
def test_z3_a_graph_search_and_the_enumeration_of_timings_agree(
    drawn: tuple[Program, Schedule], rng: Random
) -> None:
    program, schedule = drawn
    assert races_by_reachability(program, schedule) == set()
    schedule = broken(rng, schedule)
    searched = races_by_reachability(program, schedule)
    assert races_by_z3(program, schedule) == searched
    assert races_by_enumeration(program, schedule) == searched


def test_random_mistakes_race_and_the_graph_search_agrees() -> None:
    racing = 0
    for seed in range(120):
        rng = Random(seed)
        program = random_program(rng, size=6)
        schedule = broken(rng, random_schedule(rng, program, copy=0.4, home=0.5 * (seed % 2)))
        searched = races_by_reachability(program, schedule)
        assert races_by_z3(program, schedule) == searched, seed
        racing += bool(searched)
    assert racing >= 40


def test_the_verdict_is_the_simulators_on_plans_with_copies() -> None:
    """Same verdict, same peaks on both sides, one byte less of the host is refuted."""
    proven = refuted = 0
    for seed in range(36):
        rng = Random(seed)
        program = random_program(rng, size=4)
        program = replace(program, target=replace(program.target, host_bytes=None))
        schedule = random_schedule(rng, program, copy=0.4)
        if seed % 2:
            schedule = broken(rng, schedule)
        trace: Trace | None
        try:
            trace = simulate(program, schedule)
        except FBError:
            trace = None
        verdict = verify(program, schedule)
        if trace is None:
            assert isinstance(verdict, Refuted), seed
            refuted += 1
            continue
        assert isinstance(verdict, ProvenPlan), seed
        proven += 1
        peaks = trace.peak_bytes, trace.activation_peak_bytes, trace.host_peak_bytes
        bound = verdict.bounds[0]
        assert (bound.device_bytes, bound.activation_bytes, bound.host_bytes) == peaks
        if trace.host_peak_bytes:
            short = Budget(trace.host_peak_bytes - 1, "host")
            answer = verify(program, schedule, (short,), scope="sample")
            assert isinstance(answer, Refuted)
            assert {d.code for d in answer.diagnostics} == {"FB0863"}
    assert min(proven, refuted) >= 9


REFUSED = {
    "fb0301_offload_of_freed": ["FB0804"],
    "fb0312_offload_of_parameter": ["FB0859"],
    "fb0313_read_before_wait": ["FB0860"],
    "fb0314_accumulated_during_offload": ["FB0861"],
    "fb0314_freed_during_offload": ["FB0861"],
    "fb0314_freed_during_prefetch": ["FB0861"],
    "fb0314_host_copy_given_back_during_prefetch": ["FB0862"],
    "fb0314_recomputed_during_prefetch": ["FB0861"],
    "fb0315_host_copy_given_back": ["FB0852"],
    "fb0315_hostfree_twice": ["FB0852"],
    "fb0315_never_offloaded": ["FB0852"],
    "fb0316_prefetch_of_alive": ["FB0854"],
    "fb0317_stale_host_copy": ["FB0853"],
    "fb0318_wait_for_nothing": ["FB0856"],
    "fb0319_host_copy_left": ["FB0858"],
    "fb0320_copy_in_flight": ["FB0857", "FB0858"],
    "fb0321_offloaded_twice": ["FB0855"],
}


@pytest.mark.parametrize("stem", REFUSED)
def test_what_the_language_refuses_is_refuted_at_the_same_place(stem: str) -> None:
    text = (SPEC / "invalid" / f"{stem}.fbir").read_text(encoding="utf-8")
    program = parse_program(text)
    verdict = verify(program, program.schedules[0])
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == REFUSED[stem]
    places = [f"{d.span.line}:{d.span.column}" for d in verdict.diagnostics if d.span]
    assert places == re.findall(r"at (\d+:\d+)", text.split("\n", 1)[0])


def test_every_owner_on_the_host_is_named() -> None:
    program = parse_program((SPEC / "valid" / "offload.fbir").read_text(encoding="utf-8"))
    plan = next(s for s in program.schedules if s.name == "one_stream")
    verdict = verify(program, plan, (Budget(135, "host"),))
    assert isinstance(verdict, Refuted)
    (diagnostic,) = verdict.diagnostics
    assert diagnostic.code == "FB0863"
    assert diagnostic.message == (
        "offload %m takes 136 bytes on the host at b = 8: 1 bytes more than the budget of 135 bytes"
    )
    assert [n.message for n in diagnostic.notes] == [
        "128 bytes: the copy of %a (act), made by offload %a",
        "8 bytes: the copy of %m (phantom), made by this step",
    ]


def test_the_host_memory_of_the_target_is_a_budget() -> None:
    program = parse_program((SPEC / "valid" / "offload.fbir").read_text(encoding="utf-8"))
    plan = next(s for s in program.schedules if s.name == "one_stream")
    small = replace(program, target=replace(program.target, host_bytes=135))
    verdict = verify(small, plan)
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == ["FB0863"]
    enough = replace(program, target=replace(program.target, host_bytes=1088))  # at b = 64
    verdict = verify(enough, plan, scope="range")
    assert isinstance(verdict, ProvenPlan)
    assert verdict.proven.host_bytes == 1088
    short = replace(program, target=replace(program.target, host_bytes=1087))
    assert isinstance(verify(short, plan, scope="range"), Refuted)


def test_no_time_is_no_proof() -> None:
    program = parse_program((SPEC / "valid" / "offload.fbir").read_text(encoding="utf-8"))
    assert isinstance(verify(program, program.schedules[0], time_limit_s=0.0), Undecided)
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, program.schedules[0])
    assert isinstance(events, list)
    assert not isinstance(prove_races(statements, events, Inquiry(0)), NoModel | Racing)


def test_the_definitions_of_the_clocks_alone_have_a_model() -> None:
    """A false assumption would prove everything."""
    import z3

    program = parse_program((SPEC / "valid" / "offload.fbir").read_text(encoding="utf-8"))
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, program.schedules[2])
    assert isinstance(events, list)
    encoding, races = encode_races(statements, events)
    assert races
    for part in encoding.parts:
        solver = z3.Solver()
        solver.from_string("".join(part.lines))
        assert solver.check() == z3.sat
        defined = re.findall(r"declare-const (\S+) ", "".join(part.lines))
        assert len(defined) == len(set(defined))
