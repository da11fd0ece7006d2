"""`jax_step`: a plan as a function that composes with JAX's own transformations."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.jax.arrays import quick_compilation
from helpers.jax.plans import as_case, capture, run_python, schedule_of
from helpers.paths import ROOT
from remat_compile import FBError, Plan
from remat_compile.backends.jax.emit.tables import SEED
from remat_compile.planners.registry import parse_planner
from remat_compile.plans.jax.reference import reference_step
from remat_compile.plans.jax.run import compare


class Net(nn.Module):
    """Two blocks with a tied weight; with a dropout where `p` is not 0."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.inner.weight
        self.drop = nn.Dropout(p)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.drop(torch.tanh(self.inner(x)))
        h = self.drop(torch.tanh(self.again(self.norm(h))))
        return (h - y).square().mean()


def make(dtype: torch.dtype, p: float = 0.0) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(5)
    return Net(p).to(dtype), (torch.randn(8, 6, dtype=dtype), torch.randn(8, 6, dtype=dtype)), {}


def planned(p: float = 0.0) -> Plan:
    module, args, _ = make(torch.float64, p)
    return remat_compile.plan(
        module, args, planner="periodic{segments=2}", costs="roofline", device="cpu"
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


def eager(scale: float = 1.0) -> dict[str, Any]:
    module, args, _ = make(torch.float64)
    (scale * module(*args)).backward()
    return {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}


def inputs() -> tuple[jax.Array, ...]:
    return tuple(jax.device_put(a.numpy()) for a in make(torch.float64)[1])


def near(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert set(ours) == set(theirs)
    for name, grad in theirs.items():
        np.testing.assert_allclose(ours[name], grad, rtol=1e-11, atol=1e-13)


def test_it_gives_outputs_and_gradients(plan: Plan) -> None:
    step = remat_compile.jax_step(plan)
    assert step.params is not None
    assert set(step.params) == {
        "inner.weight",
        "inner.bias",
        "again.bias",
        "norm.weight",
        "norm.bias",
    }
    run = jax.jit(step, compiler_options=step.compiler_options)
    loss, grads = run(step.params, *inputs())
    module, args, _ = make(torch.float64)
    assert float(loss) == pytest.approx(module(*args).item(), rel=1e-12)
    near(grads, eager())


def test_gradient_of_an_outer_function(plan: Plan) -> None:
    step = remat_compile.jax_step(plan)

    def outer(params: Any) -> Any:
        doubled = jax.tree.map(lambda p: p * 1.0, params)
        return 3.0 * step.apply(doubled, *inputs()) + 1.0

    near(jax.jit(jax.grad(outer))(step.params), eager(3.0))


def test_vmap(plan: Plan) -> None:
    step = remat_compile.jax_step(plan)
    x, y = inputs()
    many = jnp.stack([x, 2 * x, x - 1])
    run = jax.jit(step, compiler_options=step.compiler_options)
    mapped = jax.jit(
        jax.vmap(step, in_axes=(None, 0, None)), compiler_options=step.compiler_options
    )
    losses, grads = mapped(step.params, many, y)
    for i in range(3):
        loss, own = run(step.params, many[i], y)
        np.testing.assert_allclose(losses[i], loss, rtol=1e-12)
        near({n: g[i] for n, g in grads.items()}, dict(own))


def test_a_loss_of_the_outputs() -> None:
    model = capture(
        lambda dtype: (nn.Linear(3, 2).to(dtype), (torch.ones(4, 3),), {}), torch.float32
    )
    made = as_case(model, model.base.schedule)
    with pytest.raises(FBError, match="FB0939"):
        made.step(made.step.params, *model.args)
    step = remat_compile.jax_step(made.plan, loss=lambda out: (out**2).sum())
    out, grads = step(step.params, *model.args)
    by_hand = jax.grad(lambda w: ((model.args[0] @ w.T + step.params["bias"]) ** 2).sum())(
        step.params["weight"]
    )
    np.testing.assert_allclose(grads["weight"], by_hand, rtol=1e-6)
    given = made.step(made.step.params, *model.args, tangents=2 * out)[1]
    np.testing.assert_allclose(given["weight"], by_hand, rtol=1e-6)


def test_a_recomputed_dropout_draws_the_same_numbers() -> None:
    plan = planned(0.5)
    again = [
        c.name
        for c in plan.graph.cnodes
        if c.token is not None and plan.trace.executions[c.name] > 1
    ]
    assert again
    step = remat_compile.jax_step(plan)
    args = inputs()
    with pytest.raises(FBError, match="FB0939"):
        step(step.params, *args)
    run = jax.jit(step, compiler_options=step.compiler_options)
    key = jax.random.key(7)
    loss, grads = run(step.params, *args, key=key)
    # A redrawn mask would not give the derivative of the loss that was drawn.
    ahead = {n: g / 1e5 for n, g in grads.items()}
    moved = {n: step.params[n] + ahead[n] for n in grads}
    back = {n: step.params[n] - ahead[n] for n in grads}
    slope = (run(moved, *args, key=key)[0] - run(back, *args, key=key)[0]) / 2
    size = sum(float((g**2).sum()) for g in grads.values()) / 1e5
    assert float(slope) == pytest.approx(size, rel=1e-6)
    assert float(run(step.params, *args, key=jax.random.key(8))[0]) != float(loss)
    # And PyTorch with these masks has the same gradients.
    from remat_compile.plans.jax.reference import held_tensors

    assert plan._exported is not None
    stored = reference_step(plan.program, held_tensors(plan.program, plan._exported))
    assert compare(step, stored) <= 1e-12
    assert SEED == 0


def test_dynamic_batch() -> None:
    module, args, _ = make(torch.float64)
    batch = torch.export.Dim("batch", min=2, max=64)
    plan = remat_compile.plan(
        module,
        args,
        planner="periodic{segments=2}",
        costs="roofline",
        device="cpu",
        dynamic_shapes={"x": {0: batch}, "y": {0: batch}},
    )
    assert plan.program.symbols
    step = remat_compile.jax_step(plan)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    _, grads = jax.jit(step)(step.params, jnp.asarray(x.numpy()), jnp.asarray(y.numpy()))
    module(x, y).backward()
    near(dict(grads), {n: p.grad.numpy() for n, p in module.named_parameters()})
    with pytest.raises(FBError, match="plan is for 2 to 64"):
        step(step.params, jnp.ones((65, 6)), jnp.ones((65, 6)))


def test_a_plan_from_a_file(plan: Plan, tmp_path: Any) -> None:
    plan.save(tmp_path / "plan.fbir")
    step = remat_compile.jax_step(remat_compile.load(tmp_path / "plan.fbir").program)
    assert step.params is None
    ours = remat_compile.jax_step(plan)
    near(dict(step(ours.params, *inputs())[1]), eager())


def refused(code: str, call: Any) -> list[str]:
    with pytest.raises(FBError) as error:
        call()
    assert {d.code for d in error.value.diagnostics} == {code}
    return [d.message + (d.hint or "") for d in error.value.diagnostics]


def test_parameters_of_another_shape_are_all_named(plan: Plan) -> None:
    step = remat_compile.jax_step(plan)
    x, y = inputs()
    wrong = dict(step.params or {})
    wrong["inner.weight"] = jnp.ones((6, 7))
    wrong["norm.bias"] = jnp.ones(6, jnp.float32)
    wrong["again.weight"] = jnp.ones((6, 6))
    wrong["nrom.bias"] = jnp.ones(6)
    del wrong["inner.bias"]
    messages = refused("FB0934", lambda: step(wrong, x, y))
    assert len(messages) == 5
    for part in (
        "inner.weight is float64[6, 7]; the plan is for float64[6, 6]",
        "norm.bias is float32[6]; the plan is for float64[6]",
        "it is tied to inner.weight: leave it out",
        'no parameter nrom.bias. Did you mean "norm.bias"?',
        "no parameter inner.bias is given",
    ):
        assert any(part in message for message in messages), (part, messages)
    assert refused("FB0934", lambda: step(step.params, x))
    assert refused("FB0934", lambda: step(step.params, x[:4], y))


def test_float64_needs_x64(plan: Plan) -> None:
    with jax.enable_x64(False):
        (message,) = refused("FB0932", lambda: remat_compile.jax_step(plan))
    assert "jax_enable_x64" in message


def test_what_is_no_plan() -> None:
    assert refused("FB0706", lambda: remat_compile.jax_step("plan.fbir"))  # type: ignore[arg-type]


def test_an_unproven_plan_is_refused(plan: Plan) -> None:
    steps = plan.schedule.steps[:-1]
    broken = replace(plan.schedule, steps=steps[:3] + steps[5:])
    program = plan.program.with_schedule(broken)
    with pytest.raises(FBError, match="FB0714"):
        remat_compile.jax_step(program)


@pytest.mark.slow
def test_it_trains_with_optax() -> None:
    done = run_python(ROOT / "examples/train_jax.py")
    assert done.returncode == 0, done.stderr
    assert "same as without a plan: True" in done.stdout


@pytest.mark.slow
def test_two_devices_give_what_one_gives() -> None:
    flags = "--xla_force_host_platform_device_count=2"
    done = run_python(ROOT / "tests/runners/jax_on_two_devices.py", XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    assert "2 devices, equal: True" in done.stdout


def test_the_planner_spelling_is_known() -> None:
    assert schedule_of(capture(make, torch.float64), parse_planner("chen"), None).steps


def test_compiling_without_the_options_warns_once(plan: Plan) -> None:
    """Who reads them for `jax.jit` is not told, nor who calls the step on arrays."""
    x, y = inputs()
    step = remat_compile.jax_step(plan)
    with pytest.warns(UserWarning, match="compiler_options=step.compiler_options"):
        jax.jit(step).lower(step.params, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda *given: step(*given)).lower(step.params, x, y)
        with_options = remat_compile.jax_step(plan)
        jax.jit(with_options, compiler_options=with_options.compiler_options).lower(
            with_options.params, x, y
        )
