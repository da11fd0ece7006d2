"""What a schedule says runs is what runs: operators are counted while a step runs.

Each test first asserts that the schedule at hand does what the test is about (a
BatchNorm or a dropout runs twice, ...), then that PyTorch saw exactly that many calls,
then that the step is bit-equal to eager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.execution.captures import Captured, capture
from helpers.execution.run_again import RunAgain
from helpers.models import MODELS, SMALL
from helpers.slow import default_only
from helpers.training import assert_bit_equal, outer_loss
from remat_compile import Plan
from remat_compile.ir.graph import CNode
from remat_compile.ir.schedule import Compute
from remat_compile.planners.registry import parse_planner


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls by operator name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Counter[str]:
    """Calls of the forward and the backward; the loss between them is left out."""
    forward, backward = Calls(), Calls()
    with forward:
        out = module(*args, **kwargs)
    outputs = out if isinstance(out, tuple) else (out,)
    loss = outer_loss(outputs)
    grads = torch.autograd.grad(loss, [o for o in outputs if o.requires_grad], retain_graph=True)
    with backward:
        torch.autograd.backward([o for o in outputs if o.requires_grad], grads)
    forward.counts.update(backward.counts)
    return forward.counts


def planned(plan: Plan) -> Counter[str]:
    """Calls by operator name that the schedule asks for; views and the loss are not calls
    of a computation."""
    calls: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for step in plan.schedule.steps:
        if isinstance(step, Compute):
            c = plan.graph.cnode[step.cnode]
            runs[c.name] += 1
            if c.is_accumulate:
                calls["aten.add_.Tensor"] += 1
            elif not c.is_loss:
                calls[c.call_at(runs[c.name]).op] += 1
    return calls


def replayed(plan: Plan) -> list[CNode]:
    return [plan.graph.cnode[name] for name, n in plan.trace.executions.items() if n > 1]


def check(name: str, what: Callable[[Plan], bool], planner: Any) -> Plan:
    """Plans, asserts `what` of the plan, counts a step, and compares three with eager."""
    model = captured(name)
    chosen = parse_planner(planner) if isinstance(planner, str) else planner
    plan = model.plan(None, chosen)
    assert what(plan), "the schedule does not do what this test is about"
    compiled = plan.bind()
    expected = planned(plan)
    model.reset()
    seen = counted(compiled, model.args, model.kwargs)
    wrong = {
        op: (seen[op], n) for op, n in expected.items() if op.startswith("aten.") and seen[op] != n
    }
    assert not wrong, f"calls seen and planned: {wrong}"

    assert_bit_equal(model.train(compiled), model.eager)
    return plan


@cache
def captured(name: str) -> Captured:
    return capture(lambda: {**MODELS, **SMALL}[name](torch.float32))


PLANNERS = [RunAgain(), RunAgain(0.8, seed=2), "periodic{segments=2}"]
SLOW = default_only(PLANNERS, PLANNERS[:1])
"""Every planner on the model with dropout, one on the others."""


@pytest.mark.parametrize("planner", SLOW, ids=str)
def test_batch_norm_runs_again_without_its_effect(planner: Any) -> None:
    def again(plan: Plan) -> bool:
        return any(c.replay is not None and "norm" in c.call.op for c in replayed(plan))

    plan = check("resnet", again, planner)
    updates = [b for b in plan.program.binding.buffers if b.update is not None]
    assert updates


@pytest.mark.parametrize("planner", PLANNERS, ids=str)
def test_dropout_is_drawn_again_from_its_token(planner: Any) -> None:
    def again(plan: Plan) -> bool:
        return any(c.token is not None and "dropout" in c.call.op for c in replayed(plan))

    check("gpt-flash", again, planner)


@pytest.mark.parametrize("planner", SLOW, ids=str)
def test_attention_with_dropout_runs_again(planner: Any) -> None:
    """With dropout on its weights, attention is several operators; one of them is random."""

    def again(plan: Plan) -> bool:
        return any("softmax" in c.call.op for c in replayed(plan))

    check("gpt", again, planner)


@pytest.mark.parametrize("planner", SLOW, ids=str)
def test_fused_attention_runs_again(planner: Any) -> None:
    def again(plan: Plan) -> bool:
        return any("scaled_dot_product" in c.call.op for c in replayed(plan))

    check("gpt-p0", again, planner)


@pytest.mark.parametrize("name", default_only(["gpt", "llama", "resnet"], ["gpt", "resnet"]))
def test_accumulation_chain(name: str) -> None:
    """A sum of three or more terms goes through one storage under several names."""

    def chain(plan: Plan) -> bool:
        links = {c.results[0]: plan.graph.reads(c)[0] for c in plan.graph.cnodes if c.is_accumulate}
        ran = [plan.graph.cnode[n] for n in plan.trace.executions]
        longest = any(before in links for before in links.values())
        return any(c.is_accumulate for c in ran) and (longest or name == "resnet")

    check(name, chain, RunAgain(0.5, seed=1))


@pytest.mark.parametrize("seed", default_only(range(4), range(1)))
def test_random_schedules_of_two_inputs(seed: int) -> None:
    check("two-inputgrad", lambda plan: bool(replayed(plan)), RunAgain(0.6, seed))
