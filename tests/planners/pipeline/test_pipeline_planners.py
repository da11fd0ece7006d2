"""Planners of pipelines side by side, and the rows that their plans become."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from helpers.planners.graphs import chain, residual, transformer
from helpers.planners.pipelines import layers_of, random_layers, theorem_17, with_recompute
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.pipeline import Pipeline, StageRun
from remat_compile.ir.program import Program
from remat_compile.ir.semantics.pipeline import simulate_pipeline
from remat_compile.ir.semantics.sizes import Sizes
from remat_compile.ir.text.pipeline import format_pipeline, parse_pipeline
from remat_compile.planners.contract import Infeasible
from remat_compile.planners.pipeline import madpipe
from remat_compile.planners.pipeline.contract import (
    PIPELINE_PLANNERS,
    PipelineResult,
    Planned,
    parse_pipeline_planner,
)
from remat_compile.planners.pipeline.layers import Layers
from remat_compile.planners.pipeline.madpipe import least_period_bound
from remat_compile.planners.pipeline.rows import pipeline_of
from remat_compile.planners.pipeline.search.labels import LabelSearch, SpecialAllocation
from remat_compile.planners.registry import format_planner
from remat_compile.plans.options import Errors
from remat_compile.plans.pipeline.make import PipelineRequest, make_pipeline, read_pipeline_request
from remat_compile.verifier.pipeline import check_pipeline

INFINITE = float("inf")
CHUNK = "interleaved{chunks=1}"


def planned(name: str, layers: Layers) -> PipelineResult:
    return parse_pipeline_planner(name).plan(layers, time_limit_s=60)


def asked(
    planner: str, ranks: int, microbatches: int, budget: int | None = None, link: int | None = None
) -> PipelineRequest:
    errors = Errors()
    rate = None if link is None else f"{link}B/s"
    request = read_pipeline_request(errors, planner, microbatches, budget, rate, ranks=ranks)
    errors.raise_if_any()
    assert request is not None
    return request


def period(result: PipelineResult) -> float:
    return result.plan.period_ns if isinstance(result, Planned) else INFINITE


def test_no_planner_is_better_than_one_that_searches_more() -> None:
    """Steady state: any allocation <= one special rank <= contiguous <= balanced under 1F1B*, and
    exact labels bound those of one special rank."""
    rng = random.Random(11)
    better = 0
    for _ in range(12):
        layers = replace(random_layers(rng, most=4, ranks=rng.randint(2, 3)), microbatches=None)
        names = ("pipeline-ilp", "madpipe{grid=0}", "one-f-one-b", "pipedream")
        any_ns, special_ns, contiguous_ns, balanced_ns = (period(planned(n, layers)) for n in names)
        assert any_ns <= special_ns <= contiguous_ns <= balanced_ns
        better += any_ns < contiguous_ns
        if contiguous_ns < INFINITE:
            assert least_period_bound(layers, INFINITE) <= special_ns
    assert better


@pytest.mark.parametrize("microbatches", [None, 3])
def test_a_special_rank_with_recompute_is_never_worse(microbatches: int | None) -> None:
    """By the period or by the time of a step; with exact labels it says how far it may be off."""
    rng = random.Random(17)
    better = optimal = remade = 0
    for _ in range(40):
        layers = random_layers(rng, most=6, ranks=rng.randint(2, 3))
        layers = with_recompute(rng, replace(layers, microbatches=microbatches))
        one = planned("one-f-one-b{options=recompute}", layers)
        for grid in (0, 40):
            mad = planned(f"madpipe{{grid={grid},options=recompute}}", layers)
            if not isinstance(one, Planned):
                continue
            assert isinstance(mad, Planned)
            assert mad.plan.aim_ns <= one.plan.aim_ns
            assert mad.bound_ns is not None
            assert mad.bound_ns <= mad.plan.period_ns
            better += mad.plan.aim_ns < one.plan.aim_ns
            optimal += not grid and mad.is_optimal
            remade += any(way.remade for way in mad.plan.ways)
            if microbatches is not None:
                pipeline = pipeline_of(mad.plan, microbatches, None)
                assert simulate_pipeline(pipeline).makespan_ns <= mad.plan.aim_ns
                assert check_pipeline(pipeline).holds
    assert min(better, optimal, remade) > 0


def test_more_memory_never_makes_the_period_of_madpipe_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search of less memory finds the allocation that the search of more memory misses."""
    gb = 10**9
    lemma_10 = layers_of([1, 2, 1], weights=[gb, 2 * gb, gb], ranks=2, memory=5 * gb // 2)
    more = lemma_10.with_memory(27 * gb // 10)
    assert period(planned("madpipe", lemma_10)) == period(planned("madpipe", more)) == 2
    real = LabelSearch.allocations

    def misses(search: LabelSearch, period_ns: int) -> list[SpecialAllocation]:
        found = real(search, period_ns)
        if search.layers.memory_bytes == more.memory_bytes:
            found = [replace(x, ranks=(0, 0, 0)) for x in found]  # a rank runs all: does not fit
        return found

    monkeypatch.setattr(LabelSearch, "allocations", misses)
    assert period(planned("madpipe", more)) == 2
    monkeypatch.setattr(madpipe, "memories", lambda size: [size])
    assert period(planned("madpipe", more)) == INFINITE
    rng = random.Random(21)
    monkeypatch.undo()
    for _ in range(6):
        layers = random_layers(rng, most=9, ranks=3)
        sizes = sorted(size for size in madpipe.memories(150) if size and size > 20)
        series = [
            period(planned("madpipe{tries=1,grid=8}", layers.with_memory(size))) for size in sizes
        ]
        assert series == sorted(series, reverse=True)


@pytest.mark.parametrize(
    ("numbers", "period_ns"), [([5, 5, 6, 5, 5, 6], 16), ([5, 5, 5, 5, 5, 7], 17)]
)
def test_theorem_13_is_3_partition(numbers: list[int], period_ns: int) -> None:
    """Two ranks take 16 each if and only if the numbers fall into two parts of 16."""
    assert period(planned("pipeline-ilp", layers_of(numbers, ranks=2))) == period_ns


def test_contiguous_stages_take_at_most_twice_the_time() -> None:
    """Next Fit at 2 T on random chains without bounds on memory."""
    rng = random.Random(15)
    more = 0
    for _ in range(6):
        layers = layers_of([rng.randint(1, 9) for _ in range(5)], ranks=rng.randint(2, 3))
        general, contiguous = (period(planned(n, layers)) for n in ("pipeline-ilp", "one-f-one-b"))
        assert general <= contiguous <= 2 * general
        more += general < contiguous
    assert more


def test_optimal_is_said_where_the_bound_is_met() -> None:
    contiguous = planned("one-f-one-b", layers_of(theorem_17(2), ranks=5))
    assert isinstance(contiguous, Planned)
    assert contiguous.is_optimal
    special = planned("madpipe{grid=0}", layers_of(theorem_17(2), ranks=5))
    assert isinstance(special, Planned)
    assert (special.plan.period_ns, special.bound_ns) == (11, 11)
    general = planned("pipeline-ilp", layers_of([1, 2, 1], weights=[1, 2, 1], ranks=2, memory=2))
    assert isinstance(general, Planned)
    assert general.plan.ranks == (0, 1, 0)
    assert general.is_optimal


@pytest.mark.parametrize("name", sorted((set(PIPELINE_PLANNERS) - {"interleaved"}) | {CHUNK}))
def test_a_refusal_names_the_memory_that_does(name: str) -> None:
    layers = layers_of(
        [3, 1, 2, 4], activations=[5, 4, 6, 3, 1], weights=[2] * 4, ranks=3, memory=11
    )
    refused = planned(name, layers)
    assert isinstance(refused, Infeasible)
    assert refused.why.code == "FB1020"
    assert refused.min_budget is not None
    least = refused.min_budget.bytes
    assert period(planned("one-f-one-b", layers.with_memory(least))) < INFINITE
    assert period(planned("one-f-one-b", layers.with_memory(least - 1))) == INFINITE


def test_planners_as_text() -> None:
    for name in PIPELINE_PLANNERS:
        planner = parse_pipeline_planner(name)
        assert format_planner(planner) == name  # type: ignore[arg-type]
        assert planner.source
    assert format_planner(parse_pipeline_planner("madpipe{tries=3}")) == "madpipe{tries=3}"  # type: ignore[arg-type]
    for text, code in (
        ("rotor", "FB1021"),
        ("madpip", "FB0401"),
        ("madpipe{tries=0}", "FB0404"),
        ("madpipe{phase2_s=0.0}", "FB0404"),
        ("pipedream{memory=all}", "FB0404"),
        ("interleaved{chunks=0}", "FB0404"),
    ):
        with pytest.raises(FBError) as refused:
            parse_pipeline_planner(text)
        assert refused.value.diagnostics[0].code == code, text


def test_rows_keep_the_planned_time() -> None:
    """Executed as soon as possible, the step ends within (m - 1) T + V; both opinions agree."""
    rng = random.Random(12)
    seen = 0
    while seen < 150:
        microbatches = rng.randint(1, 6)
        layers = random_layers(rng, microbatches=microbatches)
        for name in ("one-f-one-b", "pipedream", "gpipe"):
            result = planned(name, layers)
            if not isinstance(result, Planned):
                continue
            pipeline = pipeline_of(result.plan, microbatches, None)
            trace, verdict = simulate_pipeline(pipeline), check_pipeline(pipeline)
            assert trace.makespan_ns <= result.plan.aim_ns
            assert verdict.holds
            assert verdict.synchronous
            assert verdict.makespan_ns == trace.makespan_ns
            assert parse_pipeline(format_pipeline(pipeline)) == pipeline
            seen += 1


def rows(name: str, layers: Layers) -> Pipeline:
    result = planned(name, layers)
    assert isinstance(result, Planned)
    pipeline = pipeline_of(result.plan, layers.microbatches or 1, None)
    assert check_pipeline(pipeline).makespan_ns == simulate_pipeline(pipeline).makespan_ns
    return pipeline


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zero_bubble_h1_takes_the_published_time_and_copies(ranks: int) -> None:
    """Qi et al. 2023, table 2: a bubble of (p - 1) (F + B - W), and the memory of 1F1B, p micro-
    batches on the first rank. Here F, B and W take 1."""
    for m in (ranks, 2 * ranks + 1, 3 * ranks):
        layers = layers_of(
            [1] * ranks, [2] * ranks, activations=[1] * (ranks + 1), ranks=ranks, microbatches=m
        )
        found = simulate_pipeline(rows("zb-h1", replace(layers, weight_ns_L=(1,) * ranks)))
        plain = simulate_pipeline(rows("one-f-one-b", layers))
        assert found.makespan_ns == 3 * m + ranks - 1
        assert plain.makespan_ns >= 3 * (m + ranks - 1)
        busiest = max(plain.peak_bytes_R)
        assert max(found.peak_bytes_R) <= 2 * busiest


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (4, 2), (4, 3), (8, 2)])
def test_interleaved_has_the_published_bubble(ranks: int, chunks: int) -> None:
    """Narayanan et al. 2021, 2.2: a bubble of (p - 1) (F + B) / chunks."""
    n = ranks * chunks
    for m in (ranks, 2 * ranks, 2 * ranks + 1):
        layers = layers_of([1] * n, [2] * n, activations=[1] * (n + 1), ranks=ranks, microbatches=m)
        found = simulate_pipeline(rows(f"interleaved{{chunks={chunks}}}", layers))
        if m % ranks == 0:
            assert found.makespan_ns == 3 * (m * chunks + ranks - 1)
    refused = planned("interleaved", layers_of([1] * 3, ranks=2))
    assert isinstance(refused, Infeasible)
    assert refused.why.code == "FB0734"
    assert refused.why.hint


def test_a_special_rank_in_rows() -> None:
    layers = layers_of(theorem_17(2), ranks=5, activations=[1] * 12)
    result = planned("madpipe{grid=0}", layers)
    assert isinstance(result, Planned)
    plan = replace(result.plan, layers=replace(layers, microbatches=4))
    pipeline = pipeline_of(result.plan, 4, None)
    ranks = [stage.rank for stage in pipeline.stages]
    assert len(set(ranks)) < len(ranks)
    assert check_pipeline(pipeline).holds
    assert simulate_pipeline(pipeline).makespan_ns <= plan.aim_ns


@pytest.mark.parametrize(
    "program", [chain(8, seed=1), residual(6), transformer(4)], ids=["chain", "residual", "gpt"]
)
@pytest.mark.parametrize(
    "name", ["one-f-one-b", "gpipe", "pipedream", "madpipe", "zb-h1", "interleaved"]
)
def test_captured_steps(program: Program, name: str) -> None:
    """Every cNode is in one stage, and budgets hold in rows or are refused."""
    free = make_pipeline(program, asked(name, 2, 3, None, 10**9))
    assert free.verdict.holds
    names = [c for p in free.parts for c in (*p.forward, *p.backward, *p.weights)]
    defers = any(p.weights for p in free.parts)
    assert defers == (name == "zb-h1" and len(free.step.instance.names_C) > 40), names
    assert sorted(names) == free.step.instance.capture
    assert free.bound_ns <= free.plan.period_ns or name == "gpipe"
    most = max(free.trace.peak_bytes_R)
    same = make_pipeline(program, asked(name, 2, 3, 2 * most, 10**9))
    assert max(same.trace.peak_bytes_R) <= 2 * most
    assert same.pipeline.budget_bytes == 2 * most
    assert parse_pipeline(same.text) == same.pipeline
    with pytest.raises(FBError) as refused:
        make_pipeline(program, asked(name, 2, 3, most // 4, 10**9))
    assert refused.value.diagnostics[0].code == "FB1020"


def test_stage_bytes_are_those_of_the_simulated_step() -> None:
    """One rank, one micro-batch: a pipeline of one stage has the peak of the step as captured."""
    for program in (chain(8, seed=1), residual(6), transformer(4)):
        made = make_pipeline(program, asked("one-f-one-b", 1, 1))
        (stage,) = made.pipeline.stages
        assert [s.word for s in made.pipeline.rows[0] if isinstance(s, StageRun)] == ["fwd", "bwd"]
        assert made.trace.makespan_ns == made.step.instance.base_time_ns
        assert stage.forward_ns + stage.backward_ns == made.step.instance.base_time_ns
        eager = made.step.instance.peak(made.step.instance.capture)
        # The step as captured returns its output, which is no scalar here.
        sizes, storage = Sizes.of(program).anode, program.graph.storage
        returned = sum(sizes[storage[r.name]] for r in program.binding.results)
        assert eager - returned <= made.trace.peak_bytes_R[0] <= eager


def test_obstacles_are_named() -> None:
    program = chain(2)
    with pytest.raises(FBError) as refused:
        make_pipeline(program, asked("one-f-one-b", 9, 2))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB1022"
    assert diagnostic.hint
    with pytest.raises(FBError) as refused:
        asked("one-f-one-b", 2, 0)
    assert refused.value.diagnostics[0].code == "FB1023"
