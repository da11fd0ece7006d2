"""What a plan computes in JAX, and what XLA makes of it: bytes, products and names."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from helpers.jax.plans import Case, as_case, capture, captured, case, repeated, schedule_of
from helpers.models import MODELS, SMALL
from remat_compile.backends.jax.emit.tables import TOLERANCES, tolerance
from remat_compile.backends.jax.observe.absences import Absence
from remat_compile.backends.jax.runtime.step import JaxStep
from remat_compile.planners.registry import parse_planner
from remat_compile.plans.jax.run import inspect_step


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


LEAST, MOST = 0.6, 1.4
"""XLA's temporary bytes as a share of the prediction."""

MAY_BE_ABSENT = {
    "aten.clone.default",
    "aten.pow.Tensor_Scalar",
    "aten.silu.default",
}
"""Operators of executions that leave no name in XLA's program, though their values are
neither known beforehand nor unused: arrays of JAX cannot be changed, so a copy is nothing;
the first power, in the backward of a square, is its base; and of a pooling's input its
backward reads the shape alone."""

PLANS = [
    ("mlp", "dtr", "range:0.5"),
    ("small-gpt-p0", "dtr", "range:0.5"),
    ("small-resnet", "periodic{segments=4}", None),
]
LONG = [
    (f"{name}-loss", planner, budget)
    for name in ("mlp", "gpt", "llama", "resnet", "unet", "encdec", "vit", "two")
    for planner, budget in (
        ("store-all", None),
        ("dtr", "range:0.7"),
        ("dtr", "range:0.5"),
        ("auto", "range:0.4"),
        ("periodic{segments=3}", None),
        ("chen", None),
    )
]


HF = [
    (name, planner, budget)
    for name in ("hf-gpt2", "hf-llama")
    for planner, budget in (
        ("store-all", None),
        ("dtr", "range:0.9"),
        ("dtr", "range:0.7"),
        ("dtr", "range:0.5"),
        ("periodic{segments=2}", None),
        ("chen", None),
    )
]


def check(made: Case) -> None:
    """Gradients of PyTorch, every execution and product in its place, bytes as predicted."""
    seen, compiled = made.looked_at()
    outputs, _, grads, _ = made.run(compiled)
    apart = made.model.difference(grads)
    assert apart <= tolerance(made.plan.program)
    for ours, theirs in zip(outputs, made.model.outputs, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert seen.defects() == []
    assert seen.missing == ()
    graph, judged = made.plan.graph, (Absence.PASSED_ON, Absence.UNREAD)
    absent = {name.split("#")[0] for name, why in seen.absent.items() if why in judged}
    assert len(seen.scopes) > len(graph.cnodes) * 0.6
    assert {graph.cnode[name].call.op for name in absent} <= MAY_BE_ABSENT
    planned, executed = (
        sum(counts.values()) for counts in (seen.planned_products, seen.executed_products)
    )
    assert 0 < planned <= executed <= planned + seen.vector_products
    ratio = seen.temp_bytes / made.predicted
    with_scratch = (seen.temp_bytes + seen.scratch_bytes) / made.predicted
    print(
        f"{made.plan.graph.name} {made.plan.planner}: {ratio:.2f} of the predicted bytes "
        f"({with_scratch:.2f} with scratch), {apart:.1e} from PyTorch, "
        f"{len(seen.scopes)} names, {len(seen.absent)} with nothing to compute"
    )
    assert LEAST <= ratio <= MOST


@pytest.mark.parametrize(("name", "planner", "budget"), PLANS)
def test_a_plan_is_followed(name: str, planner: str, budget: str | None) -> None:
    made = case(name, planner, budget)
    assert tolerance(made.plan.program) == TOLERANCES["f64"] == 1e-12
    assert repeated(made.plan.graph, made.plan.schedule) > 0
    check(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "planner", "budget"), [("two-inputgrad", "dtr", "range:0.4"), *LONG, *HF]
)
def test_all_models_and_planners(name: str, planner: str, budget: str | None) -> None:
    check(case(name, planner, budget))


def test_float32() -> None:
    with jax.enable_x64(False):
        model = capture(MODELS["two-inputgrad"], torch.float32)
        made = as_case(model, schedule_of(model, parse_planner("chen"), None))
        _, _, grads, input_grads = made.run()
    assert grads["left.weight"].dtype == jnp.float32
    assert made.model.difference(grads) <= 1e-5
    assert [g is not None for g in input_grads] == [True, False]


def test_without_barriers_the_check_finds_what_xla_merges() -> None:
    """The defects that a report shows are found where there are any."""
    made = case("mlp", "periodic{segments=2}")
    blind = made.step.source.replace("lax.optimization_barrier(", "(")
    assert blind != made.step.source
    step = JaxStep(made.plan.program, blind, made.step.params, made.step.buffers, None)
    seen = inspect_step(step, made.plan)
    assert sum(seen.executed_products.values()) < sum(seen.planned_products.values())
    (defect,) = seen.defects()
    assert defect.code == "FB0938"
    assert "#2" in defect.message
    assert "cse_barrier_expander" in (defect.hint or "")


def test_without_the_options_the_check_finds_what_xla_merges() -> None:
    made = case("mlp", "periodic{segments=2}")
    step = JaxStep(made.plan.program, made.step.source, None, {}, None)
    step._compiler_options = {}
    assert [d.code for d in inspect_step(step, made.plan).defects()] == ["FB0938"]


def test_new_contents_of_buffers() -> None:
    """A batch normalisation that runs again updates its buffers once."""
    made = case("small-resnet", "periodic{segments=4}")
    again = [
        c
        for c in made.plan.graph.cnodes
        if c.replay is not None and made.plan.trace.executions.get(c.name, 0) > 1
    ]
    assert again
    _, new, _, _ = made.run(made.looked_at()[1])
    eager, args, _ = SMALL["resnet"](torch.float64)
    eager(*args)
    buffers = dict(eager.named_buffers())
    assert set(new) == set(buffers)
    for name, array in new.items():
        np.testing.assert_allclose(array, buffers[name].numpy(), rtol=1e-12, atol=1e-14)


def test_the_models_are_as_captured() -> None:
    assert captured("mlp").scale > 0
