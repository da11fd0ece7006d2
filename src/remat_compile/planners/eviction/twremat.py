"""`twremat`: recursion over balanced separators of a tree decomposition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar, Literal

from ...ir.analysis.treewidth import Elimination, Separated, separator_tree, tree_decomposition
from ..kit import Order, PlanResult, SearchPlanner, Task, TimedOut
from .keep import keep_what_fits
from .separator_order import OrderTooLong, Prerequisites, SeparatorOrder

_ELIMINATIONS: tuple[Elimination, ...] = ("degree", "fill")
_WIDEST = 40
"""Limit on the width (in vertices) that min-degree leaves for min-fill, which takes its cube."""
_STOPS = tuple(2.0**-k for k in range(1, 9))
"""Shares of the bytes of the unplanned step at which the recursion ends, beside its leaves."""
_HALVINGS = 6
"""The share of the gap between the largest fitting share and the next."""
_LONGEST = 40
"""An order has at most so many entries for each cNode."""
_MOST_KEPT, _KEPT_CNODES = 40, 40_000
"""The pass that keeps what fits is run on so many orders at most, of about so many cNodes."""


@dataclass(frozen=True)
class Twremat(SearchPlanner):
    """Kumar et al. 2019: a balanced separator of the graph is computed node by node and held;
    what each node reads of the parts beside it is made by the same recursion, and then goes.

    Under a budget the recursion ends early, where a plain order fits, and `keep` takes back
    recomputations that the budget can do without. `scope` says what may be computed again:
    results of the `forward`, or `all`; `elimination` how the graph is decomposed, by least `fill`
    or least `degree` (none: both are tried).
    """

    name: ClassVar[str] = "twremat"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "Kumar et al. 2019, after its public implementation"
    scope: Literal["forward", "all"] | None = None
    elimination: Elimination | None = None
    keep: bool = True

    def search(self, task: Task) -> PlanResult:
        instance = task.instance
        if instance.peak(instance.capture) <= task.limit_bytes:
            return task.answer(instance.capture)
        search = _Search(task, instance.capture, instance.peak(instance.capture))
        try:
            for needs, tree in self._separated(search):
                search.orders_of(needs, tree)
            if self.keep:
                search.keep()
        except _OutOfTime:
            schedule = None if search.best is None else task.schedule(search.best)
            return TimedOut(schedule, search.best_ns, instance.base_time_ns)
        return task.infeasible(search.least) if search.best is None else task.answer(search.best)

    def _separated(self, search: _Search) -> Iterator[tuple[Prerequisites, Separated]]:
        """The graph as it is asked for, and its separators, in each way that is tried."""
        scopes = {"forward": (False,), "all": (True,), None: (True, False)}[self.scope]
        eliminations = (self.elimination,) if self.elimination else _ELIMINATIONS
        for backward in scopes:
            needs = Prerequisites.of(search.task.instance, backward=backward)
            width = 0
            for elimination in eliminations:
                if width >= _WIDEST:
                    break
                decomposition = tree_decomposition(
                    needs.neighbours(), elimination, search.check_time
                )
                width = decomposition.width
                yield needs, separator_tree(decomposition, needs.bytes_C, search.check_time)


class _OutOfTime(Exception):
    pass


@dataclass
class _Search:
    """The orders made so far: the fastest under the budget, and the one of least peak."""

    task: Task
    least: Order
    least_bytes: int
    best: Order | None = None
    best_ns: int = 0
    fitting: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Orders under the budget, and their times."""

    def check_time(self) -> None:
        if monotonic() > self.task.deadline:
            raise _OutOfTime

    def orders_of(self, needs: Prerequisites, tree: Separated) -> None:
        """Orders with the recursion down to its leaves, and ended at shares that do not depend on
        the budget, so that the least peak does not; then at shares about the budget."""
        instance = self.task.instance
        whole = instance.peak(instance.capture) - instance.base_bytes
        fits, over = 0.0, 1.0
        self._try(needs, tree, -1)
        for share in reversed(_STOPS):
            if self._try(needs, tree, share * whole):
                fits, over = share, 1.0
            else:
                over = min(over, share)
        if fits:
            for _ in range(_HALVINGS):
                middle = (fits + over) / 2
                if self._try(needs, tree, middle * whole):
                    fits = middle
                else:
                    over = middle

    def _try(self, needs: Prerequisites, tree: Separated, plain_bytes: float) -> bool:
        """True if the order with this end of the recursion fits the budget."""
        instance = self.task.instance
        most = _LONGEST * len(instance.names_C)
        try:
            order = SeparatorOrder(needs, plain_bytes, most, self.check_time).run(tree)
        except OrderTooLong:
            return False
        peak = instance.peak(order)
        if peak < self.least_bytes:
            self.least, self.least_bytes = order, peak
        if peak > self.task.limit_bytes:
            return False
        self.fitting[tuple(order)] = instance.time_ns(order)
        self._offer(order)
        return True

    def _offer(self, order: Order) -> None:
        time_ns, base_ns = self.task.instance.time_ns(order), self.task.instance.base_time_ns
        if self.best is not None and time_ns >= self.best_ns:
            return
        self.best, self.best_ns = order, time_ns
        share = time_ns / base_ns if base_ns else 1.0
        self.task.progress(f"twremat: {share:.4f} of the time without budget")

    def keep(self) -> None:
        """Takes back what fits, in those orders that took the least time."""
        instance, limit = self.task.instance, self.task.limit_bytes
        count = min(_MOST_KEPT, 4 + _KEPT_CNODES // max(1, len(instance.names_C)))
        for order in sorted(self.fitting, key=lambda o: (self.fitting[o], o))[:count]:
            self.check_time()
            kept = keep_what_fits(instance, list(order), limit, deadline=self.task.deadline)
            self._offer(kept)
