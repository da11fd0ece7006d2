"""Steps whose kernels write results over arguments: the same step, and nobody else's values."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import bound, check_step, needs_compiler
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.backends.torch.kernels import Kernels, made, make_overwriting
from remat_compile.backends.torch.overwrites import Overwrites, overwrites
from remat_compile.driver.bind import bind, under
from remat_compile.driver.store import VARIABLE
from remat_compile.frontends.torch_export import lower
from remat_compile.ir.schedule import Compute

pytestmark = needs_compiler
BUILD = import_module("remat_compile.backends.torch.build")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(128, 512, bias=False), nn.Linear(128, 512, bias=False)
        self.down = nn.Linear(512, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return x + gated


class Stack(nn.Module):
    """Gated layers whose values inside take a MiB each; the last has given the caller a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return x, x.square().mean()


def sample() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Stack(), torch.randn(512, 128, requires_grad=True)


def planned(**options: Any) -> Plan:
    model, x = sample()
    return remat_compile.plan(
        model,
        (x,),
        fuse="inductor",
        loss=lambda outputs: outputs[1] + outputs[0].sum(),
        **{"planner": "store-all", **options},
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


def over_in(step: PlannedModule) -> list[str]:
    """Functions that are called and may write over arguments."""
    source = step.planned_step.source
    return [name for name in re.findall(r"= (fused\w+)\(", source) if "_over_" in name]


def test_measured_is_proven_and_the_values_are_those_of_eager(plan: Plan) -> None:
    assert over_in(bound(plan))
    check_step(plan, 1e-5)


def test_so_they_are_where_gates_are_made_again() -> None:
    check_step(planned(planner="dtr", activation_budget="60%"), 1e-5)


def gradients(step: nn.Module, x: Tensor, **options: Any) -> list[Tensor]:
    y, loss = step(x)
    wanted = [x, *step.parameters()]
    return [*torch.autograd.grad(loss + y.sum(), wanted, **options)]


def without(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> PlannedModule:
    """The same step, in which nothing is written over."""
    with monkeypatch.context() as patched:
        patched.setattr(BUILD, "overwrites", lambda *_: Overwrites())
        step = bound(plan)
    assert not over_in(step)
    return step


def test_the_values_are_those_of_the_plain_kernels(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, x = sample()
    plain = gradients(without(plan, monkeypatch), x)
    step = bound(plan)
    assert over_in(step)
    first = gradients(step, x)
    torch.testing.assert_close(first, plain, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        assert all(map(torch.equal, gradients(step, x), first))


def test_a_graph_that_is_kept_runs_backward_twice(plan: Plan) -> None:
    step = bound(plan)
    _, x = sample()
    y, loss = step(x)
    wanted = [x, *step.parameters()]
    first = torch.autograd.grad(loss + y.sum(), wanted, retain_graph=True)
    again = torch.autograd.grad(loss + y.sum(), wanted, retain_graph=True)
    last = torch.autograd.grad(loss + y.sum(), wanted)
    assert all(map(torch.equal, first, again))
    torch.testing.assert_close(last, first, rtol=1e-5, atol=1e-6)


def test_what_the_caller_holds_is_never_changed(plan: Plan) -> None:
    """Inputs, parameters, outputs, tangents, what the forward saved, and gradients."""
    step = bound(plan)
    _, x = sample()
    saved: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        saved.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        y, loss = step(x)
    tangents = [torch.randn_like(y), torch.ones_like(loss)]
    held = [x, *step.parameters(), y, loss, *saved, *tangents]
    before = [t.detach().clone() for t in held]
    first = torch.autograd.grad([y, loss], [x, *step.parameters()], tangents, retain_graph=True)
    kept = [g.clone() for g in first]
    torch.autograd.grad([y, loss], [x, *step.parameters()], tangents)
    assert all(map(torch.equal, held, before))
    assert all(map(torch.equal, first, kept))
    assert len(saved) > len(list(step.parameters()))


def test_two_steps_may_be_under_way(plan: Plan) -> None:
    step = bound(plan)
    _, x = sample()
    other = torch.randn_like(x).requires_grad_()
    alone = gradients(step, x), gradients(step, other)
    with pytest.warns(UserWarning, match="a second forward runs"):
        (y, loss), (of_other, other_loss) = step(x), step(other)
    parameters = [*step.parameters()]
    second = torch.autograd.grad(other_loss + of_other.sum(), [other, *parameters])
    first = torch.autograd.grad(loss + y.sum(), [x, *parameters])
    assert all(map(torch.equal, first, alone[0]))
    assert all(map(torch.equal, second, alone[1]))


def test_the_peak_is_left_as_it_is(plan: Plan) -> None:
    over = overwrites(plan.program, plan.schedule)
    during = plan.trace.during
    executed: Counter[str] = Counter()
    seen = 0
    for at, one in enumerate(plan.schedule.steps):
        if isinstance(one, Compute):
            executed[one.cnode] += 1
            if (one.cnode, executed[one.cnode]) in over.calls:
                seen += 1
                assert during[at] < plan.peak_bytes
    assert seen == len(over.calls) > 0


def test_without_such_a_kernel_the_plain_one_runs(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, x = sample()
    wanted = gradients(bound(plan), x)
    with monkeypatch.context() as patched:
        patched.setattr(BUILD, "make_overwriting", lambda *_: {})
        step = bound(plan)  # which warns of nothing
    assert over_in(step)
    torch.testing.assert_close(gradients(step, x), wanted, rtol=1e-5, atol=1e-6)


def test_one_that_takes_more_than_was_proven_is_not_used(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Inductor has to copy the result into its place."""
    over = overwrites(plan.program, plan.schedule)
    name, (_, pairs) = next(iter(over.functions.items()))
    (cnode, _) = next(key for key, called in over.calls.items() if called == name)
    c = plan.graph.cnode[cnode]
    kernels = plan._kernels
    assert isinstance(kernels, Kernels)
    assert plan._exported is not None
    with lower(plan._exported) as lowered:
        nodes = under(lowered, plan.program).nodes
        args = [nodes[ref].meta["val"] for ref in c.call.refs()]
        variants = make_overwriting(kernels, {name: (pairs, [(c, args)])})
        monkeypatch.setattr(variants[name], "workspace_bytes", 2**20)
        assert make_overwriting(kernels, {name: (pairs, [(c, args)])}) == {}


def test_by_its_calls_the_step_is_the_same(plan: Plan) -> None:
    assert plan._exported is not None
    step = bind(plan.program, plan.schedule, plan._exported, by_calls=True)
    assert isinstance(step, PlannedModule)
    assert not over_in(step)
    model, x = sample()
    for mine, other in zip(gradients(step, x), gradients(model, x), strict=True):
        torch.testing.assert_close(mine, other)


def test_they_are_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))

    def compiled() -> PlannedModule:
        model, x = sample()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = remat_compile.compile(
                model,
                (x,),
                planner="store-all",
                fuse="inductor",
                loss=lambda outputs: outputs[1] + outputs[0].sum(),
            )
        assert isinstance(step, PlannedModule)
        return step

    first = compiled()
    assert over_in(first)

    def none(traced: object) -> object:
        raise AssertionError("a kernel is compiled")

    monkeypatch.setattr(made, "compile_traced", none)
    second = compiled()
    assert over_in(second) == over_in(first)
    _, x = sample()
    assert all(map(torch.equal, gradients(second, x), gradients(first, x)))
