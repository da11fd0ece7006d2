"""Fused plans of one graph that were taken for other budgets, on disk: a lower budget gives no
higher peak.

What is searched hangs on the budget. Of two searches one may find a plan that is faster by a few
thousandths and takes more bytes than what was taken within a larger budget. That one is taken then
again, and likewise a plan takes no fewer bytes than what was taken within a smaller budget: unless
what was found now is faster by more than `YIELDED`.

    within 46.8 MB: 43.6 ms at 38.4 MB was taken; within 42.6 is found: 43.5 ms at 40.5 MB
        ->   43.6 ms at 38.4 MB
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..ir.diagnostics import Diagnostic
from .plan_cache import asked, graph_key, one_plan
from .store import Store, digest

if TYPE_CHECKING:
    from .._torch.lowered import Lowered
    from ..ir.program import Program
    from .fused_ways import FusedWay
    from .plan import Plan
    from .plan_cache import PlanCache
    from .request import PlanRequest

__all__ = ["FusedFrontier", "Taken"]

YIELDED = 0.01
"""The share of its time that a step may yield for it."""
MOST_TAKEN = 24
"""Budgets of a graph that are kept; those that were asked first go first."""


@dataclass(frozen=True)
class Taken:
    """A fused plan that was taken within a budget, both in bytes of the frontier's kind, and its
    text, of which nothing was looked at."""

    budget: int
    peak: int
    time_ns: int
    text: str

    def program(self) -> Program:
        """With its schedule, still to be proven. FBError or ValueError where it is none."""
        return one_plan(self.text, "<frontier>")


@dataclass(frozen=True)
class FusedFrontier:
    """The one file for a graph with its costs and for what was asked but the budget, under `key`.
    `is_activation` is the kind of all bytes."""

    store: Store
    key: str
    is_activation: bool

    @classmethod
    def of(
        cls, cache: PlanCache, plan: Plan, lowered: Lowered, request: PlanRequest
    ) -> FusedFrontier | None:
        """None for a planner that has no text that says all of it, and for `least`."""
        if asked(request) is None:
            return None
        is_activation = plan.budget is not None and plan.budget.kind == "activation"
        costed = replace(plan.program, schedules=(), proven=())
        words = (is_activation, asked(replace(request, budget=None)))
        key = digest(json.dumps((graph_key(costed, lowered.layouts()), words)))
        return cls(cache.store, key, is_activation)

    def find(self) -> tuple[list[Taken], tuple[Diagnostic, ...]]:
        """What was taken; FB0959 where what is there is no such file."""
        taken, diagnostics = self.store.find("frontier", self.key, _read)
        return taken or [], diagnostics

    def keep(self, plan: Plan, fused: Plan) -> tuple[Diagnostic, ...]:
        """Adds what was taken for the budget of `plan`; FB0959 where it cannot."""
        from ..ir.text.printer import format_program

        text = format_program(fused.program)
        new = Taken(self._budget(plan), self._peak(fused), fused.trace.time_ns, text)
        others = [taken for taken in self.find()[0] if taken.budget != new.budget]
        rows = [
            [taken.budget, taken.peak, taken.time_ns, taken.text]
            for taken in [*others, new][-MOST_TAKEN:]
        ]
        return self.store.put("frontier", self.key, rows)

    def ordered(
        self, plan: Plan, made: Sequence[FusedWay], taken: Sequence[Taken]
    ) -> list[FusedWay | Taken]:
        """What is to be tried for the budget of `plan`, in this order: as they were `made` where
        the first of them is within what was `taken`, else what is, the fastest first."""
        budget, own = self._budget(plan), self._peak(plan)
        most = min((known.peak for known in taken if known.budget >= budget), default=own)
        least = max((known.peak for known in taken if known.budget <= budget), default=0)
        if made and least <= self._peak_of(made[0]) <= most:
            return [*made]
        known = [one for one in taken if one.peak <= own and one.time_ns < plan.trace.time_ns]
        both: list[FusedWay | Taken] = [*known, *made]
        limit_ns = (1 + YIELDED) * min((way.time_ns for way in both), default=0)
        within = [
            way for way in both if least <= self._peak_of(way) <= most and way.time_ns <= limit_ns
        ]
        within.sort(key=lambda way: way.time_ns)
        return [*within, *(way for way in made if way not in within)]

    def _budget(self, plan: Plan) -> int:
        return self._peak(plan) if plan.budget is None else plan.budget.bytes

    def _peak(self, plan: Plan) -> int:
        trace = plan.trace
        return trace.activation_peak_bytes if self.is_activation else trace.peak_bytes

    def _peak_of(self, way: FusedWay | Taken) -> int:
        return way.peak if isinstance(way, Taken) else way.peaks[self.is_activation]


def _read(value: Any) -> list[Taken]:
    if not isinstance(value, list):
        raise ValueError("it holds no plans")
    return [_taken(row) for row in value]


def _taken(row: object) -> Taken:
    match row:
        case [int(budget), int(peak), int(time_ns), str(text)] if min(budget, peak, time_ns) >= 0:
            return Taken(budget, peak, time_ns, text)
    raise ValueError("it is no plan")
