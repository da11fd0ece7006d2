"""Rules of spec/pipelines.md: a pipeline that breaks each is refused by simulator and verifier with
one code, and the two agree on whatever happens to rows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from helpers.planners.pipeline_rows import (
    BREAKS,
    LATE_SUMS,
    LATER,
    RIGHT,
    ROUND,
    SUMS,
    Break,
    changed,
)
from helpers.planners.pipelines import random_layers
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.pipeline import Pipeline
from remat_compile.ir.semantics.pipeline import simulate_pipeline
from remat_compile.ir.text.pipeline import format_pipeline, parse_pipeline
from remat_compile.planners.pipeline.contract import Planned, parse_pipeline_planner
from remat_compile.planners.pipeline.rows import pipeline_of
from remat_compile.verifier.pipeline import check_pipeline


def test_bytes_and_times_by_hand() -> None:
    """The copy of a value takes 8 ns. Rank 0 in its first backward: 50 held, two keeps of 30, the
    second activation and two gradients of 8, 5 for itself: 139. Rank 1 in a backward: 60 + 20, the
    activation of 8, the gradient that it makes, 7 for itself: 103."""
    trace = simulate_pipeline(parse_pipeline(RIGHT))
    assert trace.peak_bytes_R == (139, 103)
    assert trace.peak_step_R == (9, 3)
    assert trace.copies == {
        ("act", 0, 0): (10, 18),
        ("grad", 0, 0): (48, 56),
        ("act", 0, 1): (56, 64),  # issued at 20 and 48; the link is busy until 56
        ("grad", 0, 1): (94, 102),
    }
    assert (trace.makespan_ns, trace.period_ns, trace.busy_ns_R) == (122, 46, (60, 60))
    assert trace.bubble == pytest.approx(1 - 60 / 122)
    # With a third pass rank 1 still has its peak in a backward; in wgt 1 mb 0 it has 60 + 9, two
    # activations of 8, 3 for itself: 88. With 29 instead of 9 the peak
    # is where the second activation is received.
    assert simulate_pipeline(parse_pipeline(LATER)).peak_bytes_R == (139, 103)
    keeps = LATER.replace("keep 9 extra 3", "keep 29 extra 3").replace("139 103", "139 113")
    assert simulate_pipeline(parse_pipeline(keeps)).peak_step_R == (9, 5)
    # Sums of gradients begin in the first backward: 38 held there, and 9 for itself instead of 5:
    # 131. After it their 12 are there, and a keep less. Rank 1 ends its row with 60, and takes 50.
    pipeline = parse_pipeline(SUMS)
    trace = simulate_pipeline(pipeline)
    assert trace.peak_bytes_R == (131, 110)
    assert trace.peak_step_R == (9, len(pipeline.rows[1]))
    # Sums of 30 that the first `wgt` of stage 1 begins are there in its second backward: 133; with
    # 50 for itself that pass has 135.
    assert simulate_pipeline(parse_pipeline(LATE_SUMS)).peak_bytes_R == (139, 133)
    most = LATE_SUMS.replace("first 20", "first 50").replace("139 133", "139 135")
    assert simulate_pipeline(parse_pipeline(most)).peak_bytes_R == (139, 135)


@pytest.mark.parametrize("broken", BREAKS, ids=[b.name for b in BREAKS])
def test_each_broken_rule_is_refused_by_both(broken: Break) -> None:
    pipeline = parse_pipeline(broken.apply())
    with pytest.raises(FBError) as refused:
        simulate_pipeline(pipeline)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == broken.code
    assert diagnostic.hint
    verdict = check_pipeline(pipeline)
    assert broken.code in {problem.code for problem in verdict.problems}


def test_every_rule_has_a_broken_pipeline() -> None:
    assert {b.code for b in BREAKS} == {f"FB10{n:02}" for n in range(2, 19)}


def both(pipeline: Pipeline) -> str:
    """The simulator's code, after the verifier has been found to agree; "" where all is right."""
    verdict = check_pipeline(pipeline)
    try:
        trace = simulate_pipeline(pipeline)
    except FBError as error:
        code = error.diagnostics[0].code
        assert code in {problem.code for problem in verdict.problems}, format_pipeline(pipeline)
        return code
    assert verdict.holds, (verdict.problems, format_pipeline(pipeline))
    assert verdict.peak_bytes_R == trace.peak_bytes_R
    assert (verdict.makespan_ns, verdict.period_ns) == (trace.makespan_ns, trace.period_ns)
    return ""


def test_two_opinions_agree_on_random_changes() -> None:
    rng = random.Random(1)
    seen: Counter[str] = Counter()
    while sum(seen.values()) < 1500:
        microbatches = rng.randint(1, 4)
        layers = replace(random_layers(rng, microbatches=microbatches), memory_bytes=None)
        layers = replace(layers, weight_ns_L=tuple(ns // 2 for ns in layers.backward_ns_L))
        name = rng.choice(("one-f-one-b", "gpipe", "pipedream", "zb-h1"))
        planned = parse_pipeline_planner(name).plan(layers)
        assert isinstance(planned, Planned)
        pipeline = pipeline_of(planned.plan, microbatches, None)
        assert both(pipeline) == ""
        others = map(parse_pipeline, (ROUND, LATER, SUMS, LATE_SUMS))
        for base in (*[pipeline] * 5, *others):
            seen[both(changed(rng, base))] += 1
    assert seen[""] > 100  # a wait later, a free earlier
    assert {f"FB10{n:02}" for n in range(3, 17)} <= set(seen), seen


def test_a_deadlock_is_shown_step_by_step() -> None:
    broken = next(b for b in BREAKS if b.code == "FB1016")
    pipeline = parse_pipeline(broken.apply(), "rows.fbpl")
    (problem,) = check_pipeline(pipeline).problems
    said = [note.message for note in problem.notes]
    assert "rank 0: wait act 2 mb 0" in said
    assert "the copy of act 2 mb 0" in said
    assert all(note.span is not None for note in problem.notes if note.message.startswith("rank"))
    assert str(problem.span).startswith("rows.fbpl:")
    with pytest.raises(FBError) as refused:
        simulate_pipeline(pipeline)
    assert "rank 0 stands at" in str(refused.value)


def test_whether_blocking_copies_would_do_is_said() -> None:
    assert check_pipeline(parse_pipeline(RIGHT)).synchronous
    around = parse_pipeline(ROUND)
    verdict = check_pipeline(around)
    assert verdict.holds
    assert not verdict.synchronous
    assert simulate_pipeline(around).makespan_ns == verdict.makespan_ns == 6


def test_text_round_trip_and_places() -> None:
    pipeline = parse_pipeline(RIGHT, "rows.fbpl")
    assert format_pipeline(pipeline) == RIGHT
    assert format_pipeline(parse_pipeline(LATER)) == LATER
    assert format_pipeline(parse_pipeline(SUMS)) == SUMS
    assert format_pipeline(parse_pipeline(LATE_SUMS)) == LATE_SUMS
    step = pipeline.rows[0][1]
    assert str(step.span) == "rows.fbpl:10:3"


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ("  fwd 0 mb 1\n", "  forward 0 mb 1\n", "FB1001", "<text>:12:3"),
        ("send act 0 to 1 mb 1", "send act 0 from 1 mb 1", "FB1001", "<text>:15:3"),
        ("held 50", "held -50", "FB1001", "<text>:5:1"),
        ("microbatches 2", "microbatches two", "FB1001", "<text>:2:1"),
        ('by "by hand"', "by hand", "FB1001", "<text>:1:1"),
        ("peaks 139 103", "peaks", "FB1001", "<text>:7:1"),
        ("microbatches 2", "microbatches 0", "FB1002", "<text>:2:1"),
        ("budget 139\n", "budget 139\nbudget 139\n", "FB1002", "<text>:5:1"),
        ("row 1", "row 2", "FB1002", "<text>:25:1"),
        ("stage 1 on 1", "stage 2 on 1", "FB1002", "<text>:6:1"),
        ("row 0\n", "", "FB1002", "<text>:8:3"),
        ("microbatches 2\n", "", "FB1002", None),
    ],
)
def test_text_that_is_refused(old: str, new: str, code: str, place: str | None) -> None:
    with pytest.raises(FBError) as refused:
        parse_pipeline(RIGHT.replace(old, new, 1))
    first = refused.value.diagnostics[0]
    assert first.code == code
    assert first.hint
    assert place is None or str(first.span) == place


def test_all_lines_that_cannot_be_read_are_told_at_once() -> None:
    text = RIGHT.replace("wait", "await")
    with pytest.raises(FBError) as refused:
        parse_pipeline(text)
    assert len(refused.value.diagnostics) == RIGHT.count("wait")


def test_more_microbatches_than_rows_could_run_are_refused_at_once() -> None:
    pipeline = parse_pipeline(RIGHT.replace("microbatches 2", f"microbatches {10**18}"))
    with pytest.raises(FBError) as refused:
        simulate_pipeline(pipeline)
    assert refused.value.diagnostics[0].code == "FB1005"
    assert [problem.code for problem in check_pipeline(pipeline).problems] == ["FB1005"]
