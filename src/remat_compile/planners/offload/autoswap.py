"""`autoswap`: tensors go to the host by a weighted sum of scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..kit import PlanResult
from ..spelling.options import at_least
from .copies.task import CopyPlanner, CopyTask

Floats = NDArray[np.float64]
_ROUNDS = 3


@dataclass(frozen=True)
class Autoswap(CopyPlanner):
    """Zhang et al. 2019 as Shilova 2021, section 3.4.1, compares it: each tensor has four scores
    (how long it is not used, that times its bytes, that weighted by the load above the budget, and
    the same after each choice anew); the best by a weighted sum are moved until the load fits.
    Weights: `points` spread over the simplex, then three rounds of steps along each; the paper
    searches them by Bayesian optimisation. Deterministic."""

    name: ClassVar[str] = "autoswap"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Zhang et al. 2019; Shilova 2021, 3.4.1"
    points: int = at_least(1, 32)

    def search_copies(self, task: CopyTask) -> PlanResult:
        try_scores(task, self.points)
        return task.answer()


def try_scores(task: CopyTask, points: int) -> None:
    """Lets the task try what this planner chooses."""
    search = _SwapSearch(task)
    for weights in _spread(points):
        search.try_weights(weights)
    step = 0.25
    for _ in range(_ROUNDS):
        for axis in range(4):
            for sign in (step, -step):
                weights = search.weights.copy()
                weights[axis] = max(0.0, weights[axis] + sign)
                search.try_weights(weights)
        step /= 2


def _spread(count: int) -> Iterator[Floats]:
    """The corners of the simplex, then points of a Kronecker sequence on it."""
    yield from np.eye(4)
    root = (
        1.2207440846057596  # of x^4 = x + 1: the sequence of least discrepancy in three dimensions
    )
    steps = np.array([root**-k for k in (1, 2, 3)])
    for k in range(1, max(0, count - 4) + 1):
        cuts = np.sort((0.5 + k * steps) % 1.0)
        yield np.diff(np.array([0.0, *cuts, 1.0]))


class _SwapSearch:
    def __init__(self, task: CopyTask):
        self.task = task
        self.order = task.instance.capture
        self.gaps = task.gaps(self.order)
        inst = task.instance
        room = task.task.limit_bytes - inst.base_bytes
        self.over: Floats = np.array(inst.profile(self.order), dtype=np.float64) - room
        self.clock = np.array([0, *accumulate(inst.time_C)], dtype=np.float64)
        self.times = np.diff(self.clock)
        self.weights: Floats = np.eye(4)[0]
        self.best_ns = -1
        self.tried: set[tuple[int, ...]] = set()
        self.sizes: Floats = np.array([gap.size_bytes for gap in self.gaps], dtype=np.float64)
        self.begins = np.array([gap.last + 1 for gap in self.gaps], dtype=np.int64)
        self.backs = np.array([min(gap.back, len(self.times)) for gap in self.gaps], dtype=np.int64)
        away = self.clock[self.backs] - self.clock[self.begins]
        loads = self._sums(np.maximum(0.0, self.over) * self.times)
        self.fixed = np.array([_normal(scores) for scores in (away, away * self.sizes, loads)])

    def _sums(self, values: Floats) -> Floats:
        """The sum of the entries' values over the gap of each tensor."""
        before = np.concatenate(([0.0], np.cumsum(values)))
        sums: Floats = before[self.backs] - before[self.begins]
        return sums

    def try_weights(self, weights: Floats) -> None:
        if self.task.late or self.task.is_best_possible:
            return
        chosen = self._chosen(weights)
        if tuple(chosen) in self.tried:
            return
        self.tried.add(tuple(chosen))
        takes = self.task.try_gaps(self.order, [self.gaps[i] for i in sorted(chosen)])
        if takes is not None and (self.best_ns < 0 or takes < self.best_ns):
            self.best_ns, self.weights = takes, weights

    def _chosen(self, weights: Floats) -> list[int]:
        """Tensors by falling score until nothing is over the budget any more."""
        over = self.over.copy()
        fixed = weights[:3] @ self.fixed
        left = np.ones(len(self.gaps), dtype=bool)
        chosen: list[int] = []
        while over.max() > 0:
            useful = left & (self._sums((over > 0).astype(np.float64)) > 0)
            if not useful.any():
                break
            score = fixed
            if weights[3]:
                loads = self._sums(np.maximum(0.0, over) * self.times)
                score = fixed + weights[3] * _normal(np.where(useful, loads, 0.0))
            best = int(np.argmax(np.where(useful, score, -1.0)))
            over[self.begins[best] : self.backs[best]] -= self.sizes[best]
            left[best] = False
            chosen.append(best)
        return chosen


def _normal(scores: Floats) -> Floats:
    most = scores.max(initial=0.0)
    return scores / most if most else np.zeros_like(scores)
