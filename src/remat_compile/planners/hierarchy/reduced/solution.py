"""The reduced H-ILP (`reduced.py`) once stated: the order of a point, the point of options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...instance import Order
from ...programs.liveness_rows import Definition
from ...solvers.milp import Milp, Vector
from ..partition.level import Level
from .prices import ChildPrices

SKIM = -1
"""The mode that saves nothing; others are the numbers of options."""


@dataclass(frozen=True)
class ReplayColumns:
    """R_t,k: the columns of its modes. `last`: k = t, just before its own backward."""

    target: int
    child: int
    last: bool
    column: dict[int, int]


@dataclass(frozen=True, eq=False)
class ReducedModel:
    """Objective times `scale_ns`, plus `fixed_ns`, is the time of the step in ns."""

    milp: Milp
    scale_ns: float
    fixed_ns: int
    fits: bool
    level: Level
    prices: Sequence[ChildPrices]
    first: Sequence[dict[int, int]]
    replays: Sequence[Sequence[ReplayColumns]]
    """For each child t, in the order they run."""
    definitions: Sequence[Definition]

    def order(self, point: Vector) -> Order:
        """The cNodes of the level that a point runs."""
        order: Order = []
        option: dict[int, int] = {}

        def run(ways: ChildPrices, modes: Iterable[tuple[int, int]], j: int, form: str) -> None:
            for mode, column in modes:
                if point[column] > 0.5:
                    if mode == SKIM:
                        skim = ways.skim_first if form == "first" else ways.skim_again
                        order.extend(skim.run)
                    else:
                        option[j] = mode
                        order.extend(getattr(ways.options[mode], form).run)

        prices, last = self.prices, len(self.level) - 1
        for j in range(last):
            if self.first[j]:
                run(prices[j], self.first[j].items(), j, "first")
            else:
                order.extend(prices[j].skim_first.run)
        order += [*self.level.forward_N[last], *self.level.backward_N[last]]
        for t in reversed(range(last)):
            for replay in self.replays[t]:
                form = "last" if replay.last else "again"
                run(prices[replay.child], replay.column.items(), replay.child, form)
            if prices[t].options:
                order.extend(prices[t].options[option.get(t, 0)].back.run)
        return order

    def point(self, options: Sequence[int]) -> Vector:
        """The point at which each child with a backward saves for one option at once, and
        nothing runs again."""
        point = np.zeros(self.milp.columns)
        for j, columns in enumerate(self.first):
            if columns:
                point[columns[options[j]]] = 1.0
        for column, states in self.definitions:
            point[column] = max(
                s.constant + sum(factor * point[other] for other, factor in s.terms) for s in states
            )
        return np.maximum(point, 0.0)
