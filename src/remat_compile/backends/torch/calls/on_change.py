"""A call that a plan was not made for: in eager, or by a plan of its own (`on_change=`)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ....capture.trace.lock import undisturbed
from ....ir.diagnostics import Diagnostic, render
from ..module import PlannedModule

PlanAgain = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], nn.Module]

MOST_PLANS = 16
"""Limit on the plans of one model; further kinds of calls run in eager."""


@dataclass
class RunEagerly:
    """Such a call runs as in the original. Warns (FB0913) at the first one."""

    warned: bool = False

    def __call__(
        self,
        owner: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changes: Sequence[str],
        hint: str = 'on_change="replan" plans each kind of call once',
    ) -> Any:
        if not self.warned:
            self.warned = True
            message = f"a call runs in eager, and no bound holds: {'; '.join(changes)}"
            diagnostic = Diagnostic("FB0913", message, hint=hint)
            warnings.warn(render(diagnostic, level="warning"), stacklevel=3)
        assert isinstance(owner, PlannedModule)
        return owner.planned_step.eager(owner, args, kwargs)


@dataclass
class RunPlannedAgain:
    """Such a call runs by a plan of its own, made at the first one and kept."""

    plan_again: PlanAgain
    known: list[PlannedModule] = field(default_factory=list)
    planning: threading.RLock = field(default_factory=threading.RLock)
    beyond: RunEagerly = field(default_factory=RunEagerly)

    def __call__(
        self,
        owner: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changes: Sequence[str],
    ) -> Any:
        known = self._known_for(owner, args, kwargs)
        if known is None:
            with self.planning:  # once, whichever threads meet the same
                known = self._known_for(owner, args, kwargs)
                if known is None and len(self.known) + 1 < MOST_PLANS:
                    self.known.append(self._planned(owner, args, kwargs))
                    known = self._known_for(owner, args, kwargs)
        if known is None:
            hint = f"at most {MOST_PLANS} kinds of calls are planned; pad to a few sizes"
            return self.beyond(owner, args, kwargs, changes, hint)
        planned, inputs = known
        return planned.planned_step.run_on(inputs)

    def _known_for(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[PlannedModule, list[Any]] | None:
        for made in self.known:
            inputs, changes = undisturbed(made.planned_step.look, owner, args, kwargs)
            if not changes:
                return made, inputs
        return None

    def _planned(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PlannedModule:
        again = self.plan_again(owner, args, kwargs)
        assert isinstance(again, PlannedModule)
        assert isinstance(owner, PlannedModule)
        again.planned_step.flight.join(owner.planned_step.flight)
        return again

    def __deepcopy__(self, memo: dict[int, Any]) -> RunPlannedAgain:
        """A copy of a module has parameters of its own, and so plans of its own."""
        return RunPlannedAgain(self.plan_again)
