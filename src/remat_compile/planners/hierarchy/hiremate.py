"""`hiremate`: a hierarchy of parts, options for each class, integer programs at all levels."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar

from ..eviction.keep import keep_what_fits
from ..eviction.search import Search
from ..instance import Instance, Order
from ..kit import Planner, PlanResult, Progress, SearchPlanner, Task, TimedOut
from ..programs.rk_checkmate import RkCheckmate
from ..programs.solve_compact import is_valid, solve_compact
from ..solvers import MilpSolver
from ..spelling.options import at_least
from ..workers.addresses import where_it_runs, wrong_address
from ..workers.pool import Workers, workers_of
from .effort import Effort
from .partition.children import Kind, Limits
from .partition.levels import Tree, tree_of
from .reduced.options import priced_orders, quick_orders
from .reduced.solve_level import LevelProblem
from .refine import refined
from .rotor_top import chain_orders

_WALKS, _LEAVES, _LEVELS, _TOP = 0.3, 0.5, 0.65, 0.8
"""Shares of the time limit that have passed when each of these is done."""
_MORE_AT_TOP = 4
"""The root may choose among this many more options."""
_TOP_S, _TOP_CHECKS = 30.0, 300
_ROOMS = (1.0, 1.05, 1.1)
"""The root's program predicts an upper bound: where it has no plan for the budget,
one for more room may hold it all the same."""
_WHOLE_CHECKS = 600
_TREE_WALKS, _CHAIN_WALKS, _TOP_WALKS, _REFINE_WALKS = 2.0, 1.0, 6.0, 2.0
"""The tree, the chain of leaves, the options of the root, and the first leaf that is refined take
as long as so many walks, or less (the tree and the root's options on 10^5 computations of GPT-2: 4
and more than 20 s of processor time, where a walk takes 5)."""
_REFINED = 2
"""Limit on the plans of different origin that are refined."""


@dataclass(frozen=True)
class Hiremate(SearchPlanner):
    """Zhao 2024, chapter 3, corrected. The forward is cut into parts of at most `children` parts,
    down to `leaf` forward cNodes: by what repeats, by dominators, or into intervals of the order
    of capture (`partition`), in at most `levels` levels (none: as many as it takes). Each class of
    equal parts gets options for `peaks` times `saves` budgets, leaves from `solver`; an integer
    program chooses among `options` of each child which to use, and what runs again when. The plan
    is then refined leaf by leaf. Classes are worked on in `processes` (none: one per core) or by
    `workers` of a cluster (dask://HOST:PORT).
    """

    name: ClassVar[str] = "hiremate"
    applicability: ClassVar[str] = "any graph"
    source: ClassVar[str] = "Zhao 2024, chapter 3"
    children: int = at_least(2, 16)
    leaf: int = at_least(1, 20)
    options: int = at_least(1, 6)
    peaks: int = at_least(1, 5)
    saves: int = at_least(1, 4)
    levels: int | None = at_least(1, None)
    partition: Kind = "auto"
    solver: Planner = field(default_factory=RkCheckmate)
    processes: int | None = at_least(1, None)
    workers: str | None = where_it_runs()

    @classmethod
    def check_options(
        cls, solver: Planner, workers: str | None, **_: object
    ) -> Iterator[tuple[str, str]]:
        yield from wrong_address(workers)
        if isinstance(solver, Hiremate):
            yield "solver", "cannot be hiremate itself"

    def search(self, task: Task) -> PlanResult:
        instance = task.instance
        if instance.peak(instance.capture) <= task.limit_bytes:
            return task.answer(instance.capture)
        places = workers_of(self.workers, self.processes, task.progress)
        with places as workers, MilpSolver() as solver:
            run = _Run(self, task, solver, workers)
            run.run()
        best, late = run.candidates.best, run.late or run.candidates.late
        if best is None and not late:
            return task.infeasible(run.candidates.least)
        if late:
            schedule = None if best is None else task.schedule(best)
            time_ns = 0 if best is None else instance.time_ns(best)
            return TimedOut(schedule, time_ns, instance.base_time_ns)
        assert best is not None
        return task.answer(best)


class _Run:
    """One call: what is quick first, then programs, as long as there is time."""

    def __init__(self, options: Hiremate, task: Task, solver: MilpSolver, workers: Workers):
        self.options, self.task, self.progress = options, task, task.progress
        self.solver, self.workers = solver, workers
        self.instance = task.instance
        self.limit_s = task.left_s
        self.search = Search(task.instance, task.limit_bytes, task.deadline)
        self.candidates = Candidates(task.instance, task.limit_bytes, task.deadline, task.progress)
        self.late = False
        """True if the time limit ended a search, besides those of `candidates`."""

    def until(self, share: float) -> float:
        return self.task.deadline - (1 - share) * self.limit_s

    @property
    def settled(self) -> bool:
        best = self.candidates.best
        return best is not None and self.instance.time_ns(best) <= self.instance.base_time_ns

    def run(self) -> None:
        self._walk()
        if self.settled or self._is_over():
            return
        self._walk_again()
        if self._is_over(_TREE_WALKS):
            return
        limits = Limits(self.options.children, self.options.leaf, self.options.partition)
        tree = tree_of(self.instance, limits, self.options.levels)
        self._tell(tree)
        if tree.root.is_leaf:
            self._solve_whole()
        else:
            self._solve_tree(tree)
        if self.settled or self.candidates.best is None or self._is_over(_REFINE_WALKS):
            return
        self._refine([member.forward for member in tree.members()])

    def _is_over(self, walks: float = 0.0) -> bool:
        """Return whether the time is over, or is too short for what takes as long as so many walks
        and cannot be interrupted."""
        over = monotonic() + walks * self.search.longest_s > self.task.deadline
        self.late |= over
        return over

    def _tell(self, tree: Tree) -> None:
        parts = sum(part.members for part in tree.classes)
        self.progress(
            f"hiremate: {parts} parts in {tree.root.depth} levels, {len(tree.classes)} classes"
        )

    def _walk(self) -> None:
        """A plan to begin from, in any graph."""
        search = self.search
        search.run(0, 0)
        if search.best is not None:
            self.candidates.offer(search.best, "walks", keep=False)
        else:
            self.candidates.offer(search.least(), "walks")
        self.late |= search.late

    def _walk_again(self) -> None:
        """The random restarts of `dtr`, as many as it makes itself."""
        search, before = self.search, self.search.best
        search.deadline = self.until(_WALKS)
        search.restart(None, 0)
        if search.best is not None and search.best is not before:
            self.candidates.offer(search.best, "walks", keep=False)
        self.late |= search.late

    def _solve_whole(self) -> None:
        """A step that is a leaf: its own program."""
        answer = solve_compact(
            self.instance,
            self.task.limit_bytes,
            time_limit_s=max(0.0, self.until(_TOP) - monotonic()),
            start=self.candidates.best,
            solver=self.solver,
            most_checks=_WHOLE_CHECKS,
        )
        if answer.order is not None:
            self.candidates.offer(answer.order, "the whole")
        self.late = self.late or (
            answer.status in ("feasible", "unknown") and monotonic() > self.until(_TOP)
        )

    def _solve_tree(self, tree: Tree) -> None:
        made = self.options
        solver = None if made.solver == RkCheckmate() else made.solver
        effort = Effort(
            tree, made.peaks, made.saves, made.options, solver, self.workers, self.progress
        )
        effort.fill(self.task.deadline)
        self._chain(tree)
        self._top(tree, quick=True)
        if not self.settled and not self._is_over():
            effort.solve_leaves(self.until(_LEAVES))
            effort.solve_levels(self.until(_LEVELS))
        self.late |= effort.late
        if not self.settled and not self._is_over():
            self._chain(tree)
            self._top(tree, quick=False)

    def _chain(self, tree: Tree) -> None:
        """Across a chain of leaves the dynamic program of Rk-Rotor is exact, and quick."""
        if self._is_over(_CHAIN_WALKS):
            return
        for order in chain_orders(self.task, tree):
            self.candidates.offer(order, "a chain of parts")
            if self.candidates.late or self.instance.peak(order) <= self.task.limit_bytes:
                return

    def _top(self, tree: Tree, *, quick: bool) -> None:
        """Plans of the root from what its children offer."""
        limit = self.task.limit_bytes
        if self._is_over(_TOP_WALKS):
            return
        problem = LevelProblem.of(tree.root, self.options.options + _MORE_AT_TOP)
        for order in priced_orders(problem.level, problem.prices):
            if self.candidates.late:
                return
            self.candidates.offer(self.instance.without_idle(order), "options of parts")
        if quick:
            for order in quick_orders(self.instance):
                if self.candidates.late:
                    return
                self.candidates.offer(order, "drop cheap")
            return
        for room in _ROOMS:
            left = min(_TOP_S, self.until(_TOP) - monotonic())
            if left <= 0:
                self.late = True
                return
            began = monotonic()
            answer = problem.solve(
                limit,
                None,
                self.solver,
                left,
                correct=True,
                most_checks=_TOP_CHECKS,
                room=int(room * limit),
            )
            unproven = answer.status in ("feasible", "unknown")
            self.late = self.late or (unproven and monotonic() - began >= 0.9 * left)
            if answer.order is not None:
                self.candidates.offer(answer.order, "the program of the root")
                return

    def _refine(self, leaves: list[tuple[int, ...]]) -> None:
        for order in self.candidates.starts(_REFINED):
            better = refined(
                self.instance,
                order,
                leaves,
                self.task.limit_bytes,
                self.task.deadline,
                self.solver,
            )
            self.candidates.offer(better.order, "leaves in context")
            self.late |= better.late


@dataclass
class Candidates:
    """Orders of a whole step under its budget, the fastest first; each with who found it."""

    instance: Instance
    limit_bytes: int
    deadline: float
    progress: Progress
    late: bool = False
    """True if the deadline ended a search early or skipped it."""
    entries: list[tuple[int, int, Order, str]] = field(default_factory=list)
    least: Order | None = None
    """The order of the least peak, whether it fits or not."""
    _least_bytes: int = 0
    _longest_s: float = 0.0
    """An order may take so long to look at: on 10^5 computations seconds, which must be left."""

    @property
    def best(self) -> Order | None:
        return self.entries[0][2] if self.entries else None

    def starts(self, most: int) -> list[Order]:
        """The best order of each finder, the fastest first, those of equal time once."""
        finders: dict[str, tuple[int, Order]] = {}
        for time_ns, _, order, finder in self.entries:
            if all(time_ns != known for known, _ in finders.values()):
                finders.setdefault(finder, (time_ns, order))
        return [order for _, order in finders.values()][:most]

    def offer(self, order: Order, finder: str, *, keep: bool = True) -> bool:
        """Takes an order in where it is valid and fits; whether it leads now. Where there is one,
        none is looked at for which the time up to the deadline is too short."""
        began = monotonic()
        if self.entries and began + self._longest_s > self.deadline:
            self.late = True
            return False
        leads = self._enter(order, finder, keep=keep)
        self._longest_s = max(self._longest_s, monotonic() - began)
        return leads

    def _enter(self, order: Order, finder: str, *, keep: bool) -> bool:
        inst = self.instance
        if not is_valid(inst, order):
            return False
        peak = inst.peak(order)
        if self.least is None or peak < self._least_bytes:
            self.least, self._least_bytes = order, peak
        if peak > self.limit_bytes:
            return False
        if keep:
            shorter = keep_what_fits(inst, order, self.limit_bytes, (), self.deadline)
            self.late = self.late or monotonic() > self.deadline
            order = shorter if inst.peak(shorter) <= self.limit_bytes else order
        time_ns = inst.time_ns(order)
        leads = not self.entries or time_ns < self.entries[0][0]
        insort(self.entries, (time_ns, len(self.entries), order, finder))
        if leads:
            base = inst.base_time_ns or 1
            self.progress(f"hiremate: {finder}, {time_ns / base:.4f} of the time without budget")
        return leads
