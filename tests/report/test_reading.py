"""What reports read off the simulator: bytes by kind, times, instances, changed plans."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from helpers.paths import fbir
from remat_compile import load
from remat_compile.ir.analysis.liveness import BudgetKind, floor_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.files.look import read_plan
from remat_compile.plans.sweep.prices import cheap_plan, prices_around
from remat_compile.report.changes import differences
from remat_compile.report.charts.drawing import stretches
from remat_compile.report.charts.rollup import by_module, by_operator
from remat_compile.report.charts.traffic import Traffic, slower
from remat_compile.report.moments import KINDS, moments
from remat_compile.report.reasons import modules, of_floor, of_module, of_peak, of_tensor
from remat_compile.report.subject import Subject
from remat_compile.report.trace import THREADS, trace_json

ROOT = Path(__file__).parents[2]
GPT = ROOT / "tests/verifier/mutants/plans/gpt.fbir"
OFFLOAD = ROOT / "spec/conformance/valid/offload.fbir"
PLANS = {
    "least": (GPT, "least"),
    "segments": (GPT, "segments"),
    "copies": (OFFLOAD, "one_stream"),
    "batchnorm": (ROOT / "spec/conformance/valid/batchnorm.fbir", None),
    "dropout": (ROOT / "spec/conformance/valid/dropout.fbir", None),
    "accumulate": (ROOT / "spec/conformance/valid/accumulate.fbir", None),
}


def subject(name: str) -> Subject:
    path, schedule = PLANS[name]
    return read_plan(path, schedule)._subject


@pytest.mark.parametrize("name", PLANS)
def test_the_parts_of_every_step_are_the_simulated_bytes(name: str) -> None:
    made = subject(name)
    steps = range(len(made.schedule.steps))
    if name in ("least", "segments"):
        steps = range(0, len(made.schedule.steps), 17)
    full = moments(made.program, made.schedule, steps)
    few = moments(made.program, made.schedule, steps, most=2)
    lives = made.timeline.lives
    for step in steps:
        moment, largest = full[step], few[step]
        assert sum(h.bytes for h in moment.holdings) == made.trace.during[step]
        assert sum(moment.by_kind.values()) == made.trace.during[step]
        names = [h.name for h in moment.holdings]
        assert len({*names}) == len(names) == sum(moment.count.values())
        there = {f"%{life.anode}" for life in lives if life.born < step <= life.died}
        assert there <= {*names}, "what is made before this step and not yet freed"
        assert (largest.by_kind, largest.count) == (moment.by_kind, moment.count)
        for kind in KINDS:
            of_kind = [h for h in moment.holdings if h.kind == kind]
            assert [h for h in largest.holdings if h.kind == kind] == of_kind[:2]
            assert (sum(h.bytes for h in of_kind), len(of_kind)) == (
                moment.by_kind[kind],
                moment.count[kind],
            )


@pytest.mark.parametrize("name", PLANS)
def test_times_add_up(name: str) -> None:
    made = subject(name)
    ran = sum(run.end_ns - run.start_ns for run in made.timeline.runs)
    assert ran + made.trace.stall_ns == made.trace.time_ns
    assert made.timeline.clock_ns[-1] == made.trace.time_ns
    root = by_module(made.program.graph, made.timeline.runs)
    assert root.total_ns == ran
    operators = by_operator(made.program.graph, made.timeline.runs)
    assert sum(t.first_ns + t.again_ns for t in operators) == ran
    again = sum(n - 1 for n in made.trace.executions.values())
    assert root.again_runs == sum(t.again_runs for t in operators) == again


@pytest.mark.parametrize("name", PLANS)
def test_instances_are_those_that_are_alive(name: str) -> None:
    """After every step: an instance that began and has not ended is what the simulator counts."""
    made = subject(name)
    sizes = made.trace._sizes.anode
    caller = made.trace.after[0] - sum(
        sizes[life.anode] for life in made.timeline.lives if life.born <= 0 < life.died
    )
    for step, after in enumerate(made.trace.after):
        held = sum(
            sizes[life.anode] for life in made.timeline.lives if life.born <= step < life.died
        )
        assert held + caller == after, step


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("kind", ["device", "activation"])
def test_the_owners_of_a_floor_are_all_of_it(name: str, kind: BudgetKind) -> None:
    made = subject(name)
    floor = of_floor(made, kind)
    assert (floor.bytes, floor.cnode) == floor_bytes(made.program, kind)
    assert sum(owner.bytes for owner in floor.owners) == floor.bytes
    assert len({owner.name for owner in floor.owners}) == len(floor.owners)


def test_a_module_is_kept_as_a_whole() -> None:
    made = subject("least")
    whole = of_module(made, "blocks.0").kept_effect
    part = of_module(made, "blocks.0.attn").kept_effect
    assert whole is not None
    assert part is not None
    assert whole.more_ns < part.more_ns < 0 <= part.more_bytes <= whole.more_bytes
    assert of_module(subject("batchnorm"), next(iter(modules(subject("batchnorm"))))) is not None


def test_prices_are_of_one_planner_around_the_peak() -> None:
    made = subject("least")
    peak, floor = made.trace.peak_bytes, made.floor[0]
    priced = prices_around(made, 60.0)
    assert priced.is_complete
    assert all(floor <= p.budget_bytes <= made.without.trace.peak_bytes for p in priced.prices)
    for p in priced.prices:
        assert p.more_bytes == p.budget_bytes - peak
        took = cheap_plan(made.program, Budget(p.budget_bytes, "device"), 60.0)
        if priced.own_ns is not None and took is not None:
            assert p.more_ns == took - priced.own_ns
            assert p.ns_per_gib == pytest.approx(p.more_ns / abs(p.more_bytes) * 2**30)
    assert any(p.more_ns is not None and p.more_ns < 0 < p.more_bytes for p in priced.prices)
    nothing = prices_around(made, 0.0)
    assert (nothing.prices, nothing.is_complete) == ((), False)


def test_modules_hold_their_parts() -> None:
    made = subject("least")
    root = by_module(made.program.graph, made.timeline.runs)
    blocks = root.parts["blocks"]
    assert set(blocks.parts) == {"0", "1", "2"}
    attn = blocks.parts["0"].parts["attn"]
    assert 0 < attn.again_ns < blocks.parts["0"].again_ns < blocks.again_ns <= root.again_ns


def test_kinds_of_the_peak() -> None:
    kinds = subject("least").peak.by_kind
    assert kinds["parameters"] == 163072
    assert kinds["recomputed"] == 32768
    copies = subject("copies")
    flying = moments(copies.program, copies.schedule, (3,))[3]
    assert flying.by_kind["in transfer"] == 136  # %a and %m, both on their way


@pytest.mark.parametrize("most", [1, 3, 50, 10_000])
def test_stretches_cover_every_step_once_and_have_the_peak(most: int) -> None:
    made = subject("least")
    parts = stretches(made, most)
    assert [s for p in parts for s in range(p.first, p.last + 1)] == list(
        range(len(made.schedule.steps))
    )
    assert len(parts) <= most + 1
    assert max(made.trace.during[p.largest] for p in parts) == made.trace.peak_bytes
    assert all(p.start < p.end for p in parts)


def test_the_peak_is_explained() -> None:
    made = subject("copies")
    peak = of_peak(made)
    assert peak.step == made.trace.peak_step
    assert sum(h.holding.bytes for h in peak.held) == made.trace.peak_bytes
    (best, *_) = peak.remedies
    assert (best.anode, best.how, best.effect.more_bytes) == ("g1", "move", -16)
    # With nothing recomputed, there is a tensor to recompute, and the figures are exact.
    eager = subject("least").without
    best = of_peak(eager).remedies[0]
    writer = eager.program.graph.writer[best.anode]
    assert best.effect.more_bytes == -32768
    assert best.effect.more_ns == writer.time_ns_at(2)


def test_keeping_what_is_recomputed_saves_time_and_takes_bytes() -> None:
    made = subject("segments")
    names = [n for n, lives in made.lives_of.items() if len(lives) > 1]
    assert len(names) > 50
    for name in names[::6]:
        effect = of_tensor(made, name).kept_effect
        assert effect is not None, name
        assert effect.more_ns <= 0
        assert effect.more_bytes >= 0
    # What keeping everything would save is all of the recomputation.
    whole = made.trace.time_ns - made.without.trace.time_ns
    best = min(e.more_ns for n in names[::6] if (e := of_tensor(made, n).kept_effect))
    assert -whole <= best < 0


def test_tensors_are_treated_as_the_plan_says() -> None:
    made = subject("least")
    assert of_tensor(made, "gelu").treatment == "recomputed"
    assert of_tensor(made, "view").node.name == "native_layer_norm_0"
    assert of_tensor(made, "tok_weight").treatment == "caller's"
    assert of_tensor(made, "add_3").treatment == "kept"
    assert of_tensor(subject("copies"), "a").treatment == "moved"
    module = of_module(made, "blocks.0.attn")
    counts = made.trace.executions
    again = [
        c.time_ns_at(2) * (counts[c.name] - 1)
        for c in made.program.graph.cnodes
        if c.loc and c.loc.module.startswith("blocks.0.attn") and counts[c.name] > 1
    ]
    assert module.again_ns == sum(again) > 0
    assert {t for _, _, t in module.tensors} == {"recomputed", "passing"}


def test_changed_plans_of_one_graph() -> None:
    same = differences(subject("least"), subject("least"))
    assert (same.same, same.changes) == (True, ())
    diff = differences(subject("least").without, subject("least"))
    assert (diff.same, diff.same_graph, diff.same_costs) == (False, True, True)
    (gelu,) = [c for c in diff.changes if (c.what, c.name) == ("kept", "%gelu")]
    assert (gelu.before, gelu.after, gelu.bytes) == (1, 0, 32768)
    again = {c.name: c.after for c in diff.changes if c.what == "recomputed"}
    counts = subject("least").trace.executions
    assert again == {name: n - 1 for name, n in counts.items() if n > 1}


def test_names_that_do_not_exist() -> None:
    made = subject("least")
    with pytest.raises(FBError, match="FB0730"):
        of_tensor(made, "gelo")
    with pytest.raises(FBError, match="FB0730"):
        of_module(made, "blocks.9")


# -- What copies ask of the link, worked out by hand -----------------------------------------------


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
