"""Copies to the host, and the annotated form: what JAX is told, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.jax.plans import Captured, as_case, capture, captured, case, schedule_of
from helpers.planners.matrix import COPYING, linked
from remat_compile import FBError
from remat_compile.backends.jax.checkpoint.annotated import names_of
from remat_compile.backends.jax.checkpoint.form import form_of, misfit
from remat_compile.backends.jax.checkpoint.form import schedule_of as schedule_of_form
from remat_compile.ir.program import Budget
from remat_compile.ir.schedule import Offload, Prefetch, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners.contract import Feasible, NotApplicable, Optimal
from remat_compile.planners.registry import parse_planner
from remat_compile.plans.budget import Baseline
from remat_compile.plans.jax.run import inspect_step
from remat_compile.plans.jax.source import residuals_of_source


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def offloading(model: Captured, planner: str, count: int) -> Schedule:
    """The plan of a planner with its first kept activations on the host instead."""
    program = model.base.program
    graph = program.graph
    form = form_of(graph, schedule_of(model, parse_planner(planner), None))
    kept, _ = names_of(program, form)
    host = frozenset(kept[:count])
    form = replace(form, kept=form.kept - host, offloaded=host)
    # A segment cannot begin where a value passes that is on the host.
    form = form_of(graph, schedule_of_form(graph, form, "offloads", "by hand"))
    schedule = schedule_of_form(graph, form, "offloads", "by hand")
    assert simulate(program, schedule).copies
    return schedule


@pytest.mark.parametrize("style", ["explicit", "annotated"])
@pytest.mark.parametrize("planner", ["store-all", "periodic{segments=3}"])
def test_offloads_are_lowered_and_equal(style: Any, planner: str) -> None:
    """Two placements for each value in the lowering for CUDA; on the CPU the same numbers."""
    model = captured("mlp-loss")
    schedule = offloading(model, planner, 3)
    moved = [s.anode for s in schedule.steps if isinstance(s, Offload)]
    assert len(moved) == len([s for s in schedule.steps if isinstance(s, Prefetch)]) == 3
    made = as_case(model, schedule, style)
    _, _, grads, _ = made.run()
    assert model.difference(grads) <= 1e-12
    seen = inspect_step(made.step, made.plan)
    assert (seen.planned_placements, seen.placements) == (6, 6)
    assert seen.defects() == []


SHARES = (0.75, 0.6, 0.9)
"""Budgets to try, of the activations' range, until the planner has a plan that copies."""
QUICK = {("offload-greedy", "mlp-loss"), ("pofo", "mlp-loss")}
CELLS = [(planner, model) for planner in sorted(COPYING) for model in ("mlp-loss", "small-gpt-p0")]


@pytest.mark.parametrize(
    ("planner", "name"),
    [cell if cell in QUICK else pytest.param(*cell, marks=pytest.mark.slow) for cell in CELLS],
)
def test_plans_of_planners_that_copy_run(planner: str, name: str) -> None:
    """The explicit form of what the planners make, with a placement per copy for CUDA."""
    model = captured(name)
    model = replace(model, base=replace(model.base, program=linked(model.base.program)))
    base = Baseline.of(model.base.program)
    low, high = base.activation_floor_bytes, base.activation_peak_bytes
    for share in SHARES:
        budget = Budget(int(low + share * (high - low)), "activation")
        made = parse_planner(planner).plan(model.base.program, budget, time_limit_s=20.0)
        if isinstance(made, NotApplicable):
            pytest.skip(made.why.message)
        if isinstance(made, Feasible | Optimal) and made.schedule.has_copies:
            break
    else:
        pytest.skip(f"{planner} moves nothing of {name}")
    ran = as_case(model, made.schedule, "explicit")
    assert model.difference(ran.run()[2]) <= 1e-12
    seen = inspect_step(ran.step, ran.plan)
    copies = [s for s in made.schedule.steps if isinstance(s, Offload | Prefetch)]
    assert seen.planned_placements == seen.placements == len(copies)
    assert seen.defects() == []


def test_a_vanished_offload_is_a_defect() -> None:
    model = captured("mlp-loss")
    made = as_case(model, offloading(model, "store-all", 2))
    source = made.step.source.replace("jax.memory.Space.Host)", "jax.memory.Space.Device)", 1)
    made.step.__init__(made.plan.program, source, None, {}, None)  # type: ignore[misc]
    moved = made.step.source.replace("jax.device_put(", "(lambda x, _: x)(", 1)
    made.step.__init__(made.plan.program, moved, None, {}, None)  # type: ignore[misc]
    (defect,) = inspect_step(made.step, made.plan).defects()
    assert "4 copies between device and host are planned" in defect.message


PLANS = ["store-all", "periodic{segments=2}", "periodic{segments=4}", "chen"]


@pytest.mark.parametrize("planner", PLANS)
def test_annotated_keeps_what_the_plan_names(planner: str) -> None:
    made = case("mlp-loss", planner, style="annotated")
    _, _, grads, _ = made.run()
    assert made.model.difference(grads) <= 1e-12
    program, schedule = made.plan.program, made.plan.schedule
    kept, offloaded = names_of(program, form_of(program.graph, schedule))
    residuals = residuals_of_source(program, made.step.source)
    assert residuals.names == frozenset(kept)
    assert (offloaded, residuals.offloaded, residuals.unnamed) == ((), frozenset(), ())
    seen = inspect_step(made.step, made.plan)
    assert seen.defects() == []


def test_the_form_of_a_plan_is_that_plan() -> None:
    model = captured("small-gpt-p0")
    graph = model.base.program.graph
    for planner in PLANS:
        schedule = schedule_of(model, parse_planner(planner), None)
        form = form_of(graph, schedule)
        assert misfit(graph, schedule, form) is None
        again = schedule_of_form(graph, form, "again", "")
        simulate(model.base.program, again)
        assert form_of(graph, again) == form


def test_a_plan_that_does_not_fit_names_its_first_step() -> None:
    """dtr runs backward computations again, which `jax.checkpoint` never does."""
    with pytest.raises(FBError) as error:
        case("mlp-loss", "dtr", "range:0.4", style="annotated")
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "FB0935"
    assert "step B" in diagnostic.message
    assert "the nearest plan takes" in diagnostic.notes[0].message
    made = case("mlp-loss", "dtr", "range:0.4", style="annotated-nearest")
    _, _, grads, _ = made.run()
    assert made.model.difference(grads) <= 1e-12


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.inner(x))), labels)


def classifier(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Classifier().to(dtype), (torch.randn(5, 4).to(dtype), torch.arange(5) % 3), {}


def test_a_name_that_jax_ignores_is_an_error() -> None:
    """JAX's derivative of log_softmax reads values inside it, not its result."""
    model = capture(classifier, torch.float64)
    schedule = schedule_of(model, parse_planner("store-all"), None)
    program = model.base.program.with_schedule(schedule)
    plan = replace(model.base, program=program, schedule=schedule)
    with pytest.raises(FBError, match="JAX does not keep %log_softmax") as error:
        remat_compile.jax_step(plan, style="annotated")
    assert [d.code for d in error.value.diagnostics] == ["FB0936"]
    source = remat_compile.jax_step(plan, style="annotated-nearest").source
    assert "'log_softmax'" not in source[source.index("KEPT = ") :]


def test_jax_remat3_is_noticed() -> None:
    made = case("mlp-loss", "chen", style="annotated")
    jax.config.update("jax_remat3", True)
    try:
        with pytest.raises(FBError, match="FB0937"):
            case("mlp-loss", "periodic{segments=3}", style="annotated")
        with pytest.raises(RuntimeError, match="jax_remat3 must be off"):
            made.run()
        explicit = case("mlp-loss", "periodic{segments=3}")
        assert explicit.model.difference(explicit.run()[2]) <= 1e-12
    finally:
        jax.config.update("jax_remat3", False)
