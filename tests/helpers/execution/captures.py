"""One capture of a model for many budgets: capturing takes longer than planning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import remat_compile
from helpers.training import Record, assert_bit_equal, train_steps
from remat_compile import Budget, Plan
from remat_compile.driver.budget import parse_budget, resolve_budget
from remat_compile.planners.contract import Infeasible, NotApplicable, Planner
from remat_compile.planners.registry import parse_planner

__all__ = ["BUDGETS", "Captured", "capture"]

BUDGETS = ("range:1.0", "range:0.7", "range:0.5", "least")
"""`least` is 2 % above the fewest device bytes for which `dtr` finds a plan."""

Make = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Captured:
    """A model with the plan that recomputes nothing, and three steps of it in eager."""

    base: Plan
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: dict[str, Any]
    eager: Record

    def budget(self, text: str) -> Budget:
        if text != "least":
            return resolve_budget(parse_budget(text), self.base.baseline)
        answer = parse_planner("dtr").plan(self.base.program, Budget(1))
        assert isinstance(answer, Infeasible)
        assert answer.min_budget is not None
        return Budget(answer.min_budget.bytes * 102 // 100)

    def plan(self, budget: Budget, planner: Planner) -> Plan:
        """A plan within `budget`, not proven yet: `bind` does that, or refuses."""
        # In a second, `auto` has asked the quick planners; it is not what is tested here.
        answer = planner.plan(self.base.program, budget, time_limit_s=1.0)
        assert not isinstance(answer, Infeasible | NotApplicable), answer
        assert answer.schedule is not None
        return replace(
            self.base,
            program=self.base.program.with_schedule(answer.schedule),
            schedule=answer.schedule,
            budget=budget,
            _is_proven=False,
        )

    def check(self, budgets: Iterable[str], planner: str = "dtr") -> None:
        """Trains under a plan for each budget; fails with all that is not as in eager. `planner`
        plans for half of the range; only `dtr` reaches the least, and is quick for the others."""
        wrong = []
        for text in budgets:
            bound = self.budget(text)
            plan = self.plan(bound, parse_planner(planner if text == "range:0.5" else "dtr"))
            assert plan.peak_bytes <= bound.bytes
            if text in ("range:0.5", "least"):
                assert max(plan.trace.executions.values()) > 1, f"{text}: nothing runs again"
            try:
                assert_bit_equal(self.train(plan), self.eager)
            except AssertionError as error:
                wrong.append(f"{text} by {plan.planner}: {error}")
        assert not wrong, "\n".join(wrong)

    def train(self, plan: Plan) -> Record:
        """Three steps under `plan`, from the parameters of the capture."""
        self.module.load_state_dict(self.state)
        for p in self.module.parameters():
            p.grad = None
        return train_steps(plan.bind(), self.args, self.kwargs)


def capture(make: Make) -> Captured:
    """Captures what `make` gives; a second call of it runs in eager."""
    module, args, kwargs = make()
    base = remat_compile.plan(
        module, args, kwargs, planner="store-all", costs="roofline", device="cpu"
    )
    state = copy.deepcopy(module.state_dict())
    original, _, _ = make()
    with torch.enable_grad():
        eager = train_steps(original, args, kwargs)
    return Captured(base, module, args, kwargs, state, eager)
