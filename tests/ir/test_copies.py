"""Copies to the host and back in the simulator: bytes, streams and times, worked out by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.paths import fbir
from helpers.programs.strategies import copying
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program, Target
from remat_compile.ir.schedule import Compute, HostFree, Offload, Prefetch, Schedule, Wait
from remat_compile.ir.semantics.link import Link
from remat_compile.ir.semantics.simulate import Copy, Trace, simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program

# A byte takes 1 ns to the host and 2 ns back; granularity 8.
PROGRAM = fbir("ir/texts/copies")
RATES = "d2h 1GB/s h2d 500MB/s"
BOTH = (
    "F1; offload %a; F2; offload %b; F3; wait %a; wait %b; free %a; free %b; L; "
    "prefetch %b; prefetch %a; wait %a; wait %b; hostfree %a; hostfree %b; B1; "
    "free %a; free %b; free %dy"
)


def run(steps: str, rates: str = RATES) -> Trace:
    made = parse_program(PROGRAM.replace("RATES", rates).replace("STEPS", steps))
    return simulate(made, made.schedules[0])


def test_bytes_of_both_sides() -> None:
    trace = run(BOTH)
    a, b, y, x = 104, 56, 8, 16
    held = x
    assert trace.during == (
        *(held + a, held + a),  # F1, offload: frees nothing
        *(held + a + b, held + a + b, held + a + b + y),
        *[held + a + b + y] * 3,  # both waits, and during the first free
        held + b + y,  # during the second
        held + y + 8,  # L makes %dy
        held + y + 8 + b,  # taken at the prefetch, not at the wait
        *[held + y + 8 + b + a] * 5,
        *[held + y + 8 + b + a + 16] * 2,  # B1 makes %gx
        held + y + 8 + b + 16,
        held + y + 8 + 16,
    )
    assert trace.during_host == (0, a, a, *[a + b] * 12, b, *[0] * 4)
    assert trace.host_peak_bytes == a + b
    assert trace.host_peak_step == 3
    assert trace.host_at(2) == (("a", a),)
    assert trace.host_at(3) == (("a", a), ("b", b))


def test_times_of_the_streams() -> None:
    """One stream per direction: the second copy starts when the first is done."""
    trace = run(BOTH)
    assert trace.copies == (
        Copy("a", "d2h", 1, 5, 10, 10 + 104, 114 - 60),  # waited for at 10 + 20 + 30
        Copy("b", "d2h", 3, 6, 114, 114 + 56, 56),
        Copy("a", "h2d", 11, 12, 170 + 112, 170 + 112 + 208, 112 + 208),
        Copy("b", "h2d", 10, 13, 170, 170 + 112, 0),
    )
    assert trace.stall_ns == 54 + 56 + 320
    assert trace.time_ns == 10 + 20 + 30 + 40 + trace.stall_ns


def test_the_directions_run_beside_each_other() -> None:
    trace = run(
        "F1; offload %a; wait %a; free %a; prefetch %a; wait %a; F2; offload %b; hostfree %a; "
        "offload %a; wait %b; free %b; prefetch %b; wait %b; F3; L; B1; wait %a; hostfree %a; "
        "hostfree %b; free %a; free %b; free %dy"
    )
    by_issue = {copy.issued: copy for copy in trace.copies}
    out, back = by_issue[9], by_issue[12]
    assert (out.direction, back.direction) == ("d2h", "h2d")
    assert out.start_ns < back.end_ns
    assert back.start_ns < out.end_ns


def test_an_unknown_bandwidth_counts_as_no_time() -> None:
    assert run(BOTH, "").time_ns == 100
    assert run(BOTH, "d2h 1GB/s").time_ns == 100 + 54 + 56


def test_a_fraction_of_a_nanosecond_is_rounded_up() -> None:
    trace = run(BOTH, "h2d 3GB/s")  # 104 / 3 = 34.67
    assert {c.anode: c.end_ns - c.start_ns for c in trace.copies if c.direction == "h2d"} == {
        "a": 35,
        "b": 19,
    }


def test_all_that_is_wrong_is_reported() -> None:
    with pytest.raises(FBError) as error:
        run("F1; offload %a; free %a; F2; prefetch %a; offload %x; wait %b; F3; L; hostfree %b; B1")
    assert [d.code for d in error.value.diagnostics] == [
        "FB0314",  # free %a while it is copied
        "FB0301",  # F2 reads it
        "FB0314",  # a second copy
        "FB0312",
        "FB0318",
        "FB0315",
        "FB0301",  # B1
        "FB0320",  # %x
        "FB0319",
        "FB0320",  # %a
        "FB0319",
        "FB0306",  # %b
        "FB0306",  # %dy
    ]


def test_steps_know_their_place() -> None:
    made = parse_program(PROGRAM.replace("RATES", RATES).replace("STEPS", BOTH))
    steps = made.schedules[0].steps
    assert steps[:2] == (Compute("F1"), Offload("a"))
    assert steps[5] == Wait("a")
    assert steps[10] == Prefetch("b")
    assert steps[14] == HostFree("a")
    span = steps[1].span
    line = 1 + PROGRAM.split("schedule")[0].count("\n")
    assert span is not None
    assert (span.line, span.column, span.end_column) == (line, 22, 32)


@settings(max_examples=20)
@given(copying())
def test_round_trip(drawn: tuple[Program, Schedule]) -> None:
    program, _ = drawn
    text = format_program(program)
    assert parse_program(text) == program
    quick, slow = (
        read_syntax(text, by_grammar_alone=False),
        read_syntax(text, by_grammar_alone=True),
    )
    assert repr(quick.schedules) == repr(slow.schedules)
    spans = [step.span for step in slow.schedules[0].steps]
    assert [step.span for step in quick.schedules[0].steps] == spans


@settings(max_examples=25)
@given(copying(size=4))
def test_books_balance(drawn: tuple[Program, Schedule]) -> None:
    """Bytes of each side are those of its owners; copies of a direction do not overlap."""
    program, schedule = drawn
    trace = simulate(program, schedule)
    for step in {*range(0, len(trace.during), 5), trace.peak_step, trace.host_peak_step}:
        assert sum(size for _, size in trace.live_at(step)) == trace.during[step]
        assert sum(size for _, size in trace.host_at(step)) == trace.during_host[step]
    for direction in ("d2h", "h2d"):
        lane = sorted((c for c in trace.copies if c.direction == direction), key=lambda c: c.issued)
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(lane))
    compute_ns = sum(
        program.graph.cnode[name].time_ns_at(n)
        for name, runs in trace.executions.items()
        for n in range(1, runs + 1)
    )
    assert trace.time_ns == compute_ns + trace.stall_ns


@settings(max_examples=15)
@given(copying(size=4), st.integers(1, 50))
def test_each_copy_takes_the_compute_stream_its_issue(
    drawn: tuple[Program, Schedule], issue: int
) -> None:
    """Bytes do not change; over a link of no time, the step takes so much more, and no more."""
    program, schedule = drawn
    no_time = Target(granularity_bytes=program.target.granularity_bytes)
    free = replace(program, target=no_time)
    paid = replace(program, target=replace(no_time, copy_issue_ns=issue))
    without, with_ = simulate(free, schedule), simulate(paid, schedule)
    assert with_.issuing_ns == issue * len(with_.copies)
    assert with_.time_ns == without.time_ns + with_.issuing_ns
    assert with_.stall_ns == without.issuing_ns == 0
    assert (with_.during, with_.during_host) == (without.during, without.during_host)


def test_ways_that_share_a_link_slow_each_other_down() -> None:
    """100 bytes out alone from 0 to 40; then both at half the rate; the last 10 alone again."""
    target = Target(
        d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, both_bytes_per_s=10**9, copy_latency_ns=0
    )
    link = Link(target)
    out, back = link.issue("d2h", 100, 0), link.issue("h2d", 50, 40)
    assert (link.end_of(back), link.end_of(out)) == (140, 150)


def test_a_latency_is_before_the_bytes_and_takes_nothing_from_the_other_way() -> None:
    target = Target(
        d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, both_bytes_per_s=10**9, copy_latency_ns=30
    )
    link = Link(target)
    out, back = link.issue("d2h", 60, 0), link.issue("h2d", 10, 20)
    # Out: 30 of latency, alone until 50, then 20 bytes of 40 in 40 ns beside the way back.
    assert (link.end_of(back), link.end_of(out)) == (70, 100)
    second = link.issue("d2h", 0, 100)
    assert (second.start_ns, link.end_of(second)) == (100, 130)


@settings(max_examples=30)
@given(copying(), st.integers(1, 50), st.integers(1, 4))
def test_slower_copies_never_make_a_step_faster(
    case: tuple[Program, Schedule], latency: int, factor: int
) -> None:
    """Where the ways do not slow each other down: `semantics.md`, Slower copies."""
    made, plan = case
    times = []
    for share in (1, factor):
        rates = Target(
            d2h_bytes_per_s=10**8 // share, h2d_bytes_per_s=10**7 // share, copy_latency_ns=0
        )
        times.append(simulate(replace(made, target=rates), plan).time_ns)
    late = replace(rates, copy_latency_ns=latency)
    times.append(simulate(replace(made, target=late), plan).time_ns)
    assert times == sorted(times)
    copies = len(simulate(made, plan).copies)
    assert times[2] - times[1] <= latency * copies
