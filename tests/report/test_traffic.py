"""What copies ask of the link, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from helpers.paths import fbir
from remat_compile import load
from remat_compile.ir.program import Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.report.charts.traffic import Traffic, slower
from remat_compile.report.trace import THREADS, trace_json

VALID = Path(__file__).parents[2] / "spec" / "conformance" / "valid"

# 100 bytes leave at 10 and are waited for at 10 + 1000; they come back at 1030.
TEXT = fbir("report/texts/traffic")


@pytest.fixture
def traffic() -> Traffic:
    made: Program = parse_program(TEXT)
    return Traffic(made, made.schedules[0], simulate(made, made.schedules[0]))


def test_bytes_and_busy_times(traffic: Traffic) -> None:
    assert traffic.trace.time_ns == 10 + 1000 + 20 + 200 + 40
    assert (traffic.moved_bytes("d2h"), traffic.moved_bytes("h2d")) == (100, 100)
    assert (traffic.busy_ns("d2h"), traffic.busy_ns("h2d")) == (100, 200)
    assert traffic.trace.stall_ns == 200


def test_the_step_on_slower_links(traffic: Traffic) -> None:
    assert traffic.time_at(Fraction(1)) == traffic.trace.time_ns
    assert traffic.time_at(Fraction(1, 2)) == traffic.trace.time_ns + 200
    assert traffic.time_at(Fraction(1, 4)) == traffic.trace.time_ns + 600
    # 1.05 x 1270 = 1333.5: the way back may take 263 ns, so 200 / 263 of the rate.
    assert traffic.least_share is not None
    assert float(traffic.least_share) == pytest.approx(200 / 263, rel=1e-3)
    half = slower(traffic.program.target, Fraction(1, 2))
    assert half.both_bytes_per_s == 600 * 10**6


def test_without_rates_there_is_nothing_to_say(traffic: Traffic) -> None:
    target = replace(traffic.program.target, d2h_bytes_per_s=None, h2d_bytes_per_s=None)
    made = replace(traffic.program, target=target)
    bare = Traffic(made, traffic.schedule, simulate(made, traffic.schedule))
    assert bare.least_share is None
    assert bare.time_at(Fraction(1, 2)) == bare.trace.time_ns


def test_a_trace_has_the_issue_of_each_copy() -> None:
    """What the compute stream does follows without a gap, to the end of the step."""
    plan = load(VALID / "copy_issue.fbir", "one_stream")
    events = json.loads(trace_json(plan._subject))["traceEvents"]
    lane = THREADS["compute"]
    spans = sorted(
        (e["ts"], round(e["ts"] + e["dur"], 6), e["name"])
        for e in events
        if e["ph"] == "X" and e["tid"] == lane and e["dur"]
    )
    assert [name for *_, name in spans].count("issue") == 3
    assert [end for _, end, _ in spans[:-1]] == [begin for begin, *_ in spans[1:]]
    assert (spans[0][0], spans[-1][1]) == (0, 8.5)
