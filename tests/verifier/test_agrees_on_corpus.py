"""Simulator, verifier and reference on all that is kept as text, and on what planners make."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planners.graphs import residual, stochastic
from helpers.planners.matrix import USE_UP_THEIR_LIMIT, program_for
from helpers.programs.strategies import scheduled
from helpers.slow import default_only
from helpers.verifier.breaks import BREAKS
from helpers.verifier.mutants import NAMES, QUICK, case_named
from helpers.verifier.reference import harm, interpret
from remat_compile.ir.analysis.liveness import lower_bound_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import CopyStep, Schedule, Step
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.planners import Feasible, Optimal, TimedOut, available, parse_planner
from remat_compile.verifier import ProvenPlan, Refuted, verify

CONFORMANCE = Path(__file__).parents[2] / "spec" / "conformance"
VALID = sorted((CONFORMANCE / "valid").glob("*.fbir"))
OF_REGIONS = tuple(f"fb{code:04}" for code in range(322, 327))
"""What is refused when a file is read, before any schedule of it."""
OF_SCHEDULES = [
    path
    for path in sorted((CONFORMANCE / "invalid").glob("fb03*.fbir"))
    if not path.stem.startswith(OF_REGIONS)
]
GRAPHS = {
    "residual": residual,
    "stochastic": stochastic,
}


def agree(program: Program, schedule: Schedule) -> bool:
    """Whether the three accept the schedule; fails where they differ, or by a byte."""
    trace: Trace | None = None
    with suppress(FBError):
        trace = simulate(program, schedule)
    reasons = harm(program, schedule)
    # The other two know nothing of ranges.
    verdict = verify(program, schedule, scope="sample")
    if trace is None:
        assert isinstance(verdict, Refuted), verdict
        assert reasons
        return False
    assert isinstance(verdict, ProvenPlan), verdict
    assert not reasons
    run = interpret(program, schedule)
    bound = verdict.bounds[0]
    assert trace.peak_bytes == bound.device_bytes == run.peak()
    assert trace.activation_peak_bytes == bound.activation_bytes == run.peak("activation")
    assert (trace.during, trace.during_activation) == (tuple(run.device), tuple(run.activation))
    assert trace.during_host == tuple(run.host)
    return True


def both_budgets(program: Program, schedule: Schedule) -> None:
    """The peak is enough for both, and one byte less for neither."""
    peak = simulate(program, schedule).peak_bytes
    assert isinstance(verify(program, schedule, (Budget(peak),), scope="sample"), ProvenPlan)
    short = (Budget(peak - 1),)
    assert isinstance(verify(program, schedule, short, scope="sample"), Refuted)
    assert harm(program, schedule, *short)


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_valid_files(path: Path) -> None:
    program = parse_program(path.read_text(encoding="utf-8"), path.name)
    for schedule in program.schedules:
        assert agree(program, schedule)
        both_budgets(program, schedule)


@pytest.mark.parametrize("path", OF_SCHEDULES, ids=lambda path: path.stem)
def test_invalid_schedules(path: Path) -> None:
    """Each of these files is well-formed and has a schedule that is refused."""
    program = read_syntax(path.read_text(encoding="utf-8"), path.name)
    opinions = [agree(program, schedule) for schedule in program.schedules]
    assert not all(opinions)


def test_there_are_enough_invalid_schedules() -> None:
    assert len(OF_SCHEDULES) >= 11


@pytest.mark.parametrize("name", default_only(NAMES, QUICK))
def test_plans_of_real_models_and_what_breaks_them(name: str) -> None:
    case = case_named(name)
    assert agree(case.program, case.schedule)
    rng = Random(name)
    for kind in rng.sample(list(BREAKS), 2):
        steps = list(case.steps)
        BREAKS[kind](rng, steps)
        agree(case.program, replace(case.schedule, steps=tuple(steps)))


def _move_copy(rng: Random, steps: list[Step]) -> None:
    """A step of a copy goes a few places up or down."""
    copies = [i for i, step in enumerate(steps) if isinstance(step, CopyStep)]
    at = rng.choice(copies)
    step = steps.pop(at)
    steps.insert(max(0, at + rng.randrange(-6, 7)), step)


@pytest.mark.parametrize("name", [*BREAKS, "move a copy"])
@pytest.mark.parametrize("seeds", default_only([range(7), range(7, 20)], [range(7)]))
def test_plans_with_copies_and_what_breaks_them(name: str, seeds: range) -> None:
    case = case_named("mlp@offload")
    refused = 0
    for seed in seeds:
        rng = Random(f"{name} {seed}")
        steps = list(case.steps)
        BREAKS.get(name, _move_copy)(rng, steps)
        refused += not agree(case.program, replace(case.schedule, steps=tuple(steps)))
    assert refused >= (0 if name == "toggle nosave" else 1)  # the graph has no phantoms


@pytest.mark.parametrize("graph", default_only(GRAPHS, ["stochastic"]))
@pytest.mark.parametrize(
    "planner", default_only(available(), set(available()) - USE_UP_THEIR_LIMIT)
)
@pytest.mark.parametrize("share", default_only([1.0, 0.3], [0.3]))
def test_every_planner_at_every_budget(planner: str, graph: str, share: float) -> None:
    program = program_for(planner, GRAPHS[graph]())
    low = lower_bound_bytes(program, "device")[0]
    high = simulate(program, _store_all(program)).peak_bytes
    budget = Budget(int(low + share * (high - low)))
    answer = parse_planner(planner).plan(program, budget, time_limit_s=1.0)
    if isinstance(answer, Optimal | Feasible | TimedOut) and answer.schedule is not None:
        assert agree(program, answer.schedule)
        assert isinstance(verify(program, answer.schedule, (budget,)), ProvenPlan)


def _store_all(program: Program) -> Schedule:
    answer = parse_planner("store-all").plan(program, None)
    assert isinstance(answer, Optimal | Feasible)
    assert answer.schedule is not None
    return answer.schedule


@settings(max_examples=30, derandomize=True)
@given(scheduled(), st.lists(st.sampled_from(sorted(BREAKS)), max_size=3), st.integers(0, 2**32))
def test_random_plans_and_random_corruptions(
    case: tuple[Program, Schedule], breaks: list[str], seed: int
) -> None:
    program, schedule = case
    rng = Random(seed)
    steps = list(schedule.steps)
    for name in breaks:
        if steps:
            BREAKS[name](rng, steps)
    agree(program, replace(schedule, steps=tuple(steps)))
