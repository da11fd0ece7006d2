"""One capture of a model for many budgets: capturing takes longer than planning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from helpers.training import Record, assert_bit_equal, train_steps
from remat_compile import Budget, Plan
from remat_compile.backends.torch import build
from remat_compile.capture.torch import Lowered, ensure_trusted, export
from remat_compile.planners.contract import Infeasible, NotApplicable, Planner
from remat_compile.planners.registry import parse_planner
from remat_compile.plans.budget import parse_budget, resolve_budget
from remat_compile.plans.make import planned_source
from remat_compile.plans.options import Errors
from remat_compile.plans.request import read_request
from remat_compile.plans.run_planner import Phases
from remat_compile.plans.source import Source

BUDGETS = ("range:1.0", "range:0.7", "range:0.5", "least")
"""`least` is 2 % above the fewest device bytes for which `dtr` finds a plan."""
TIGHT = ("range:0.5", "least")
"""Of these, the budgets under which something must run again."""

ROOFLINE = {"costs": "roofline", "device": "cpu"}

Make = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Captured:
    """A model with the plan that recomputes nothing, three steps of it in eager, and the
    modules that run the plans which were asked for."""

    base: Plan
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: dict[str, Any]
    eager: Record
    drop_ins: Mapping[str, nn.Module] = field(default_factory=dict)

    def budget(self, text: str) -> Budget:
        if text != "least":
            return resolve_budget(parse_budget(text), self.base.baseline)
        answer = parse_planner("dtr").plan(self.base.program, Budget(1))
        assert isinstance(answer, Infeasible)
        assert answer.min_budget is not None
        return Budget(answer.min_budget.bytes * 102 // 100)

    def plan(self, budget: Budget | None, planner: Planner) -> Plan:
        """A plan within `budget`, not proven yet: `bind` does that, or refuses."""
        # On a quiet machine `auto`, which is not what is tested here, has a plan in the first.
        answers = (planner.plan(self.base.program, budget, time_limit_s=t) for t in (0.4, 20.0))
        for answer in answers:
            assert not isinstance(answer, Infeasible | NotApplicable), answer
            if answer.schedule is not None:
                break
        assert not isinstance(answer, Infeasible | NotApplicable)
        assert answer.schedule is not None
        return replace(
            self.base,
            program=self.base.program.with_schedule(answer.schedule),
            schedule=answer.schedule,
            budget=budget,
            _is_proven=False,
        )

    def plans(self, budgets: Iterable[str], planner: str) -> dict[str, Plan]:
        """A plan for each budget. `planner` plans for half of the range; only `dtr` reaches the
        least, and is quick for the others."""
        plans: dict[str, Plan] = {}
        for text in budgets:
            bound = self.budget(text)
            plan = self.plan(bound, parse_planner(planner if text == "range:0.5" else "dtr"))
            assert plan.peak_bytes <= bound.bytes
            if text in TIGHT:
                assert max(plan.trace.executions.values()) > 1, f"{text}: nothing runs again"
            plans[f"{text} by {plan.planner}"] = plan
        return plans

    def check(self) -> None:
        """Trains what was built; fails with all that is not as in eager."""
        assert self.drop_ins
        wrong = []
        for what, drop_in in self.drop_ins.items():
            try:
                assert_bit_equal(self.train(drop_in), self.eager)
            except AssertionError as error:
                wrong.append(f"{what}: {error}")
        assert not wrong, "\n".join(wrong)

    def reset(self) -> None:
        """Parameters and buffers are those of the capture; there is no gradient."""
        self.module.load_state_dict(self.state)
        self.module.zero_grad(set_to_none=True)
        for tensor in (t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, Tensor)):
            tensor.grad = None

    def train(self, drop_in: nn.Module) -> Record:
        """Three steps of what was bound, from the parameters of the capture."""
        self.reset()
        return train_steps(drop_in, self.args, self.kwargs)


def capture(make: Make, budgets: Iterable[str] = (), planner: str = "dtr") -> Captured:
    """Captures what `make` gives, and builds a proven plan for each of `budgets`, as
    `remat_compile.compile` does for one; a second call of `make` runs in eager."""
    module, args, kwargs = make()
    state = copy.deepcopy(module.state_dict())
    original, _, _ = make()
    with torch.enable_grad():
        eager = train_steps(original, args, kwargs)
    with planned(module, args, kwargs, planner="store-all", **ROOFLINE) as (base, lowered):
        captured = Captured(base, module, args, kwargs, state, eager)
        proven = {what: plan.trusted() for what, plan in captured.plans(budgets, planner).items()}
        drop_ins = {
            what: build(lowered.with_program(plan.program), plan.schedule)
            for what, plan in proven.items()
        }
    return replace(captured, drop_ins=drop_ins)


@contextmanager
def planned(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any
) -> Iterator[tuple[Plan, Lowered]]:
    """`remat_compile.plan`, and inside the block the model as it was lowered, to build on; the
    checks of `compile` at its end."""
    request = read_request(Errors(), **options)
    assert request is not None
    with planned_source(Source(export(module, args, kwargs)), request, Phases()) as made:
        yield made
    ensure_trusted(made[1])
