"""Memory: what is measured never exceeds what was proven, and is what was predicted."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.execution import captures
from helpers.execution.captures import Captured, capture
from helpers.execution.run_again import RunAgain
from helpers.models import BASE, LOSS_INSIDE, MODELS, SMALL, VARIANTS
from helpers.slow import default_only
from helpers.training import assert_bit_equal, outer_loss
from remat_compile import Plan
from remat_compile.backends.torch import Mark, PlannedModule, build, measure_regions, measure_step
from remat_compile.ir.graph import CALLER_KINDS, CNode
from remat_compile.ir.schedule import Compute
from remat_compile.ir.semantics.simulate import Sizes
from remat_compile.planners.registry import parse_planner
from remat_compile.regions.share import Needs, Used, bound_bytes, fixed_bytes, fraction

CASES = [
    *((name, budget) for name in BASE for budget in ("range:1.0", "range:0.5")),
    *((name, "range:0.7") for name in LOSS_INSIDE),
    *((name, "range:0.5") for name in VARIANTS),
]
DEFAULT = [
    ("two", "range:0.5"),
    ("mlp", "range:1.0"),
    ("resnet-loss", "range:0.7"),
]
TOLERANCE = 0.01


@cache
def planned(name: str, budget: str) -> tuple[Plan, PlannedModule, tuple[Any, ...], dict[str, Any]]:
    """A plan with measured costs, bound, after one step (which fills PyTorch's caches)."""
    module, args, kwargs = MODELS[name](torch.float32)
    asked = {"budget": budget, "costs": "measured", "planner": "dtr"}
    with captures.planned(module, args, kwargs, **asked) as (plan, lowered):
        compiled = build(lowered.with_program(plan.program), plan.schedule)
    step(compiled, args, kwargs)
    for p in compiled.parameters():
        p.grad = None
    return plan, compiled, args, kwargs


def step(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    out = module(*args, **kwargs)
    torch.autograd.backward(outer_loss(out if isinstance(out, tuple) else (out,)))


def within(measured: int, predicted: int) -> bool:
    return abs(measured - predicted) <= TOLERANCE * predicted


@pytest.mark.parametrize(("name", "budget"), default_only(CASES, DEFAULT))
def test_measured_stays_within_the_bound(name: str, budget: str) -> None:
    plan, compiled, args, kwargs = planned(name, budget)
    assert plan.proven is not None
    assert plan.budget is not None
    proven = plan.proven.device_bytes
    assert proven <= plan.budget.bytes
    use = measure_step(compiled, args, kwargs)
    peaks = [
        ("forward", use.forward_measured_bytes, use.forward_predicted_bytes),
        ("backward", use.backward_measured_bytes, use.backward_predicted_bytes),
    ]
    if name in LOSS_INSIDE:
        peaks.append(("step", measured_step(plan, compiled, args, kwargs), plan.peak_bytes))
    for what, measured, predicted in peaks:
        note = f"{what}: measured {measured}, predicted {predicted}, proven {proven}"
        assert measured <= proven, note
        assert within(measured, predicted), note


def measured_step(
    plan: Plan, compiled: PlannedModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int:
    """Device bytes from before the forward to after the backward, PyTorch's own wrappers
    included. Nothing is taken from the plan but what the caller holds."""
    for p in compiled.parameters():
        p.grad = None
    sizes = Sizes.of(plan.program).anode
    held = sum(sizes[a.name] for a in plan.graph.anodes if a.kind in CALLER_KINDS)

    def run(mark: Mark) -> None:
        with mark("step"):
            step(compiled, args, kwargs)

    _, uses = measure_regions(run)
    return held + uses["step"].peak_bytes_over_entry


def test_less_memory_than_eager() -> None:
    """The point of it all, by the profiler alone: a tight plan takes less than eager does."""
    plan, compiled, args, kwargs = planned("resnet-loss", "range:0.7")
    eager, _, _ = MODELS["resnet-loss"](torch.float32)
    step(eager, args, kwargs)
    for p in eager.parameters():
        p.grad = None

    def run(mark: Mark) -> None:
        with mark("ours"):
            step(compiled, args, kwargs)
        with mark("eager"):
            step(eager, args, kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, uses = measure_regions(run)
    ours, theirs = uses["ours"].peak_bytes_over_entry, uses["eager"].peak_bytes_over_entry
    saved = plan.baseline.peak_bytes - plan.peak_bytes
    assert theirs - ours >= 0.9 * saved


# -- How regions of `torch ------------------------------------------------------------------------

NEEDS = {
    "a": Needs(10, 110, 5, held={1: 7, 2: 3}, grads={1: 7}),
    "b": Needs(20, 60, 2, held={1: 7, 3: 4}, grads={1: 7, 3: 4}),
}


def test_what_waits_adds_up_and_one_runs() -> None:
    used = {"a": Used(100, 60), "b": Used(50, 45)}
    assert bound_bytes({"a": 1}, used) == 100
    assert bound_bytes({"a": 1, "b": 1}, used) == 60 + 45 + 40
    assert bound_bytes({"a": 2, "b": 1}, used) == 2 * 60 + 45 + 40
    assert bound_bytes({}, used) == 0


@pytest.mark.parametrize(
    ("room", "part"),
    [(30, Fraction(0)), (100, Fraction(1, 2)), (170, Fraction(1)), (10**6, Fraction(1))],
)
def test_all_go_the_same_part_of_the_way(room: int, part: Fraction) -> None:
    assert fraction({"a": 1, "b": 1}, NEEDS, room) == part
    shares = [needs.share_bytes(part) for needs in NEEDS.values()]
    assert sum(shares) <= room
    assert all(
        needs.floor_bytes <= share <= needs.peak_bytes
        for needs, share in zip(NEEDS.values(), shares, strict=True)
    )


def test_floors_that_do_not_fit() -> None:
    assert fraction({"a": 1, "b": 1}, NEEDS, 29) < 0
    assert fraction({"a": 2, "b": 1}, NEEDS, 39) < 0
    assert fraction({"c": 1}, {"c": Needs(5, 5)}, 4) < 0
    assert fraction({"c": 1}, {"c": Needs(5, 5)}, 5) == 1


def test_shared_parameters_count_once_and_their_gradients_twice_for_a_while() -> None:
    alone = fixed_bytes({"a": 1}, NEEDS, held_before=False)
    assert alone == 10 + 7 + 5
    assert fixed_bytes({"a": 1}, NEEDS, held_before=True) == alone + 7
    assert fixed_bytes({"a": 3}, NEEDS, held_before=False) == 10 + 7 + 7 + 3 * 5
    both = fixed_bytes({"a": 1, "b": 1}, NEEDS, held_before=False)
    assert both == (7 + 3 + 4) + (7 + 4) + 7 + (5 + 2)


# -- What a schedule says runs is what runs -------------------------------------------------------


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


def planned_calls(plan: Plan) -> Counter[str]:
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
    expected = planned_calls(plan)
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


@pytest.mark.parametrize("planner", SLOW, ids=str)
def test_batch_norm_runs_again_without_its_effect(planner: Any) -> None:
    def again(plan: Plan) -> bool:
        return any(c.replay is not None and "norm" in c.call.op for c in replayed(plan))

    plan = check("resnet", again, planner)
    updates = [b for b in plan.program.binding.buffers if b.update is not None]
    assert updates


@pytest.mark.parametrize("planner", SLOW, ids=str)
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
