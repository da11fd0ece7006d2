"""`rockmate`: integer programs inside blocks, dynamic programming across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from ..kit import Order, PlanResult, Progress, SearchPlanner, Task, TimedOut
from ..spelling.options import at_least
from ..workers.addresses import where_it_runs, wrong_address
from ..workers.pool import Workers, workers_of
from .answer import answer_or_refuse, chain_for, first_fit, least_order, no_chain, persistent_orders
from .block_options import Grid, PeakAnswer, RowJob, block_instance, option_of
from .chain import Chain, fingerprints, grouped
from .recurrences.persistent import DeadlinePassed
from .stages import BlockOption, save_all, stages_of

_FOR_BLOCKS = 0.35
"""The share of the time limit that the blocks may take."""
_JOINED = 20
"""Blocks of so many forward cNodes are small for the integer program."""
_WAVE = 2
"""Rows of a block that are solved at the same time, whatever the number of processors."""
_MOST_STAGES = 200
"""Neighbours are joined in longer chains: every block brings a hundred options."""


@dataclass(frozen=True)
class Rockmate(SearchPlanner):
    """Zhao 2024, chapter 2: each unique block is solved for `peaks` times `saves` budgets
    with the compact integer program, in `processes` of their own (none: one per core) or by
    `workers` of a cluster (dask://HOST:PORT), and Rk-Rotor chooses an option for every block of
    the chain. Blocks are joined up to `block_size` forward cNodes (none: both as they are cut and
    joined up to 20, and the faster plan).

    O(N^2 (N + options) slots) after the blocks, for N of them.
    """

    name: ClassVar[str] = "rockmate"
    applicability: ClassVar[str] = "blocks"
    source: ClassVar[str] = "Zhao 2024, chapter 2"
    peaks: int = at_least(1, 10)
    saves: int = at_least(1, 10)
    slots: int = at_least(1, 500)
    block_size: int | None = at_least(1, None)
    processes: int | None = at_least(1, None)
    workers: str | None = where_it_runs()

    check_options = staticmethod(wrong_address)

    def search(self, task: Task) -> PlanResult:
        start = monotonic()
        limit_s, report = task.left_s, task.progress
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        chain = chain_for(task.instance, _MOST_STAGES)
        if (refusal := no_chain(task, chain)) is not None:
            return refusal
        chains = self._chains(chain)
        fitting: list[Order] = []
        least: list[Order] = []
        late = False
        try:
            with workers_of(self.workers, self.processes, report) as workers:
                for k, blocks in enumerate(chains, 1):
                    share = _FOR_BLOCKS * limit_s * k / len(chains)
                    options_N, cut_short = self._options(
                        blocks, start + share, workers, task.progress
                    )
                    late = late or cut_short
                    stages = stages_of(blocks, options_N)
                    order = first_fit(task, persistent_orders(task, stages, self.slots))
                    if order is not None:
                        fitting.append(order)
                    elif not fitting:
                        least.append(least_order(task, stages))
        except DeadlinePassed:
            if not fitting:
                return TimedOut(None, 0, task.instance.base_time_ns)
        if fitting:
            best = min(fitting, key=task.instance.time_ns)
            if late:
                time_ns = task.instance.time_ns(best)
                return TimedOut(task.schedule(best), time_ns, task.instance.base_time_ns)
            return task.answer(best)
        return answer_or_refuse(task, min(least, key=task.instance.peak))

    def _chains(self, chain: Chain) -> list[Chain]:
        """The block sizes to try: as it is cut, and joined."""
        if self.block_size is not None:
            return [grouped(chain, self.block_size)]
        joined = grouped(chain, _JOINED)
        return [chain] if len(joined) in (2, len(chain)) else [chain, joined]

    def _options(
        self, chain: Chain, deadline: float, workers: Workers, progress: Progress
    ) -> tuple[list[list[BlockOption]], bool]:
        """For every stage, all that its class was solved for; whether the clock cut it short."""
        last = len(chain) - 1
        classes = _classes(chain)
        grids = [Grid(block_instance(chain, c[0]), self.peaks, self.saves) for c in classes]
        progress(f"{self.name}: {last} blocks, {len(classes)} of them unique")
        _solve_all(grids, workers, deadline)
        options_N: list[list[BlockOption]] = [[] for _ in range(last)]
        for grid, members in zip(grids, classes, strict=True):
            for i in members:
                options_N[i] = [option_of(chain, i, order) for order in grid.orders]
                options_N[i].append(save_all(chain, i))
        options_N.append([save_all(chain, last)])
        progress(f"{self.name}: {sum(len(g.orders) for g in grids)} options in all")
        return options_N, any(grid.late for grid in grids)


def _classes(chain: Chain) -> list[list[int]]:
    """Stages (the loss left out) that are identical up to names."""
    classes: dict[str, list[int]] = {}
    for i, kind in enumerate(fingerprints(chain)):
        classes.setdefault(kind, []).append(i)
    return list(classes.values())


def _solve_all(grids: Sequence[Grid], workers: Workers, deadline: float) -> None:
    """Solves every row of every grid.

    The largest peaks of all grids come first: they are solved fastest and used most. Rows come
    in waves, whose answers are entered in order: what is found does not hang on who is first.
    """
    rows = list(zip(*(grid.rows() for grid in grids), strict=True))
    for first in range(0, len(rows), _WAVE):
        wave = rows[first : first + _WAVE]
        jobs = [RowJob(g, p) for row in wave for g, p in zip(grids, row, strict=True)]
        for job, answer in zip(jobs, list(workers.map(jobs, deadline)), strict=True):
            job.grid.enter(answer or PeakAnswer((), late=True))
