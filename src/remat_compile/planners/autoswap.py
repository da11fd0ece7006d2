"""`autoswap`: tensors go to the host by a weighted sum of scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .copying.gaps import Gap
from .copying.task import CopyTask
from .kit import Budget, PlanResult, Program, Progress, format_planner
from .spelling.options import Checked, at_least

Floats = NDArray[np.float64]
_ROUNDS = 3


@dataclass(frozen=True)
class Autoswap(Checked):
    """Zhang et al. 2019 as Shilova 2021, section 3.4.1, compares it: each tensor has four scores
    (how long it is not used, that times its bytes, that weighted by the load above the budget, and
    the same after each choice anew); the best by a weighted sum are moved until the load fits.
    Weights: `points` spread over the simplex, then three rounds of steps along each; the paper
    searches them by Bayesian optimisation. Deterministic."""

    name: ClassVar[str] = "autoswap"
    applicability: ClassVar[str] = "any graph, on a target with a link"
    source: ClassVar[str] = "Zhang et al. 2019; Shilova 2021, 3.4.1"
    copies: ClassVar[bool] = True
    points: int = at_least(1, 32)

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        task = CopyTask.of(program, budget, format_planner(self), monotonic() + time_limit_s)
        try_scores(task, self.points)
        return task.answer()


def try_scores(task: CopyTask, points: int) -> None:
    """Lets the task try what this planner chooses."""
    search = _Search(task)
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


class _Search:
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
        self.fixed = [_normal(scores) for scores in zip(*map(self._scores, self.gaps), strict=True)]

    def _scores(self, gap: Gap) -> tuple[float, float, float]:
        back = min(gap.back, len(self.times))
        away = float(self.clock[back] - self.clock[gap.last + 1])
        return away, away * gap.size_bytes, self._load(gap, self.over)

    def _load(self, gap: Gap, over: Floats) -> float:
        part = slice(gap.last + 1, gap.back)
        return float((np.maximum(0.0, over[part]) * self.times[part]).sum())

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
        left = list(range(len(self.gaps)))
        chosen: list[int] = []
        while left and over.max() > 0:
            useful = [i for i in left if self._helps(self.gaps[i], over)]
            if not useful:
                break
            now = _normal([self._load(self.gaps[i], over) for i in useful])
            score = [
                sum(float(w) * scores[i] for w, scores in zip(weights[:3], self.fixed, strict=True))
                + float(weights[3]) * now[k]
                for k, i in enumerate(useful)
            ]
            best = useful[max(range(len(useful)), key=lambda k: (score[k], -useful[k]))]
            gap = self.gaps[best]
            over[gap.last + 1 : gap.back] -= gap.size_bytes
            chosen.append(best)
            left.remove(best)
        return chosen

    @staticmethod
    def _helps(gap: Gap, over: Floats) -> bool:
        return bool(over[gap.last + 1 : gap.back].max() > 0)


def _normal(scores: Sequence[float]) -> list[float]:
    most = max(scores, default=0.0)
    return [score / most if most else 0.0 for score in scores]
