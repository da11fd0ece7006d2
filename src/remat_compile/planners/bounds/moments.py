"""A lower bound on the time of every plan under a budget, from one moment of the step at a time.

Cuts the schedule where cNode k first runs. What first executions read that come later for
certain is there at that moment, or made again after it:

    S[a]   a is alive while k runs
    R[c]   c, which ran before, is replayed after the cut, once or more

    S[a] = 1                     for what k reads, and for results once the loss has run
    S[a] + R[maker of a] >= 1    for what a later first execution reads
    S[a] + R[maker of a] >= R[c] for what a replay of c reads
    sum size[a] S[a] + results and workspace of k  <=  budget

The least time of the replays is an integer program with a column or two for each tensor, so
graphs may be large. Replays before the cut are not counted, and bytes at other moments are not
looked at: `relaxation` does both, at a size that grows with the square of the graph. Where first
executions keep the order of capture, all of it before k is earlier and all after k is later
for certain; else only what k depends on, and what depends on k. Not taken from a paper.

Four layers x1 = F0(x0) to x4 = F3(x3), 100 bytes and 10 ns each, of which the backward reads both
sides; budget 500. When B6 (cNode 6) runs, S = 1 for x2, x3, d3 (which it reads) and x4 (a
result), and d2 is written: 500. B7 comes later and reads x1: S[x1] + R[F0] >= 1. So S[x1] = 0,
R[F0] = 1: no plan takes less than 10 ns of replays.

    >>> cuts_over(step, 500)  # the moments at which 500 bytes are too few for all
    [5, 6]
    >>> with MilpSolver() as solver:
    ...     replays_ns(step, 500, solver, 60.0)
    10.0
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from time import monotonic

from ..instance import Instance
from ..solvers import MilpSolver
from ..solvers.milp import Milp, MilpBuilder

_MOST_CUTS = 6
"""The fullest moments are looked at; others rarely ask for more."""


def replays_ns(
    instance: Instance,
    limit_bytes: int,
    solver: MilpSolver,
    time_limit_s: float,
    *,
    any_order: bool = False,
) -> float:
    """Nanoseconds of replays that no plan under the budget can do without: none whose first
    executions keep the order of capture, or none at all."""
    deadline = monotonic() + time_limit_s
    most = 0.0
    for k in cuts_over(instance, limit_bytes)[:_MOST_CUTS]:
        if (left := deadline - monotonic()) <= 0:
            break
        cut = cut_program(instance, limit_bytes, k, any_order=any_order)
        solved = solver.solve(cut.milp, left)
        if isfinite(solved.bound):
            most = max(most, solved.bound * cut.scale_ns)
    return most


def cuts_over(instance: Instance, limit_bytes: int) -> list[int]:
    """The cNodes at whose first execution the budget is too small for all that is still
    to be read, the fullest first. Linear."""
    held = _held(instance, set(range(len(instance.names_A))))
    room = limit_bytes - instance.base_bytes
    over = [bytes_ + _own(instance, k) - room for k, bytes_ in enumerate(held)]
    # Of neighbours that differ by their own work only, the fullest says most.
    near = [max(over[max(0, k - 2) : k + 3]) for k in range(len(over))]
    return sorted((k for k, n in enumerate(over) if 0 < n == near[k]), key=lambda k: -over[k])


def least_bytes(instance: Instance) -> list[int]:
    """Bytes at each first execution if everything that can be is made again from the forward:
    what it works on, gradients and sums that wait, and results. Linear."""
    inst = instance
    remade = {
        a
        for a, c in enumerate(inst.writer_A)
        if c >= 0 and inst.makable_C[c] and inst.phase_C[c] == "fwd" and not inst.kept_A[a]
    }
    held = _held(inst, set(range(len(inst.names_A))) - remade)
    return [
        bytes_ + _own(inst, k) + sum(inst.size_A[a] for a in remade & set(inst.reads_C[k]))
        for k, bytes_ in enumerate(held)
    ]


def _held(instance: Instance, anodes: set[int]) -> list[int]:
    """Bytes of these that wait at each first execution, nothing being made again."""
    inst = instance
    count = len(inst.names_C)
    last = [-1] * len(inst.names_A)
    for k in range(count):
        for a in inst.reads_C[k]:
            last[a] = k
    change = [0] * (count + 1)
    for a in anodes:
        begin, until = inst.writer_A[a], count - 1 if inst.kept_A[a] else last[a]
        if 0 <= begin < until:
            change[begin + 1] += inst.size_A[a]
            change[until + 1] -= inst.size_A[a]
    return list(accumulate(change[:count]))


def _own(instance: Instance, k: int) -> int:
    """Bytes of the results and the workspace of a first execution."""
    results = () if instance.ends_C[k] >= 0 else instance.writes_C[k]
    return instance.workspace_C[k] + sum(instance.size_A[a] for a in results)


@dataclass(frozen=True, eq=False)
class MomentProgram:
    """The program of one moment; its objective times `scale_ns` is nanoseconds."""

    milp: Milp
    scale_ns: float


def cut_program(
    instance: Instance, limit_bytes: int, k: int, *, any_order: bool = False
) -> MomentProgram:
    """The integer program of the moment when cNode `k` runs first."""
    if any_order:
        before, after = _ancestors(instance, k), _descendants(instance, k)
    else:
        before, after = set(range(k)), set(range(k + 1, len(instance.names_C)))
    built = MomentRows(instance, limit_bytes, k, before)
    return MomentProgram(built.build(after), built.scale_ns)


def _ancestors(instance: Instance, k: int) -> set[int]:
    """The cNodes that run before k in every schedule."""
    ancestors: set[int] = set()
    todo = [k]
    while todo:
        for a in instance.reads_C[todo.pop()]:
            writer = instance.writer_A[a]
            if writer >= 0 and writer not in ancestors:
                ancestors.add(writer)
                todo.append(writer)
    return ancestors


def _descendants(instance: Instance, k: int) -> set[int]:
    """The cNodes whose first execution comes after that of k in every schedule."""
    later = {k}
    for c in range(k + 1, len(instance.names_C)):
        if any(instance.writer_A[a] in later for a in instance.reads_C[c]):
            later.add(c)
    return later - {k}


class MomentRows:
    """`before` holds the cNodes that have run for certain; nothing is said of others."""

    def __init__(self, instance: Instance, limit_bytes: int, k: int, before: set[int]):
        self.inst = instance
        self.k = k
        self.before = before
        self.room = limit_bytes - instance.base_bytes - _own(instance, k)
        self.unit = float(max(1, abs(self.room)))
        self.scale_ns = max(1.0, sum(instance.retime_C) / max(1, len(instance.retime_C)))
        self.b = MilpBuilder()
        makers = (c for c in before if instance.makable_C[c])
        self.maker = {a: c for c in makers for a in instance.rewrites_C[c]}
        self.alive: dict[int, int] = {}
        self.beside: list[tuple[int, int]] = []
        """Columns of a subclass, and the bytes that each counts."""
        self.runs: dict[int, int] = {}
        self.todo: list[int] = []

    def build(self, after: set[int]) -> Milp:
        self.rows(after)
        return self.b.build()

    def _must_stay(self) -> set[int]:
        """The values alive at the moment, read or not: the results, from the loss on."""
        inst = self.inst
        if self.k != inst.loss and inst.loss not in self.before:
            return set()
        made = (a for a, keep in enumerate(inst.kept_A) if keep and self._is_made(a))
        return {a for a in made if inst.phase_C[inst.writer_A[a]] == "fwd"}

    def rows(self, after: set[int]) -> None:
        """Everything but the objective that a subclass may price in its own way."""
        inst = self.inst
        kept = {a for a, keep in enumerate(inst.kept_A) if keep and self._is_made(a)}
        there = set(inst.reads_C[self.k]) | self._must_stay()
        for a in there:
            self._alive(a, at_least=1.0)
        # What an accumulate has ended cannot be read any more, under its old name.
        ended = {inst.ends_C[c] for c in self.before}
        wanted = kept | {a for j in after for a in inst.reads_C[j] if self._is_made(a)}
        for a in sorted(wanted - there - ended):
            self.b.row(self._there_or_made(a), lower=1.0)
        while self.todo:
            self._replay(self.todo.pop())
        sizes = [*((column, inst.size_A[a]) for a, column in self.alive.items()), *self.beside]
        room = self.room / self.unit
        self.b.row([(c, size / self.unit) for c, size in sizes if size], upper=room)

    def _price(self, c: int) -> float:
        """The cost of a replay in the objective."""
        return self.inst.retime_C[c] / self.scale_ns

    def _is_made(self, a: int) -> bool:
        return self.inst.writer_A[a] in self.before

    def _alive(self, a: int, at_least: float = 0.0) -> int:
        if a not in self.alive:
            self.alive[a] = self.b.column(lower=at_least)
        return self.alive[a]

    def _run(self, c: int) -> int:
        if c not in self.runs:
            self.runs[c] = self.b.column(self._price(c))
            self.todo.append(c)
        return self.runs[c]

    def _there_or_made(self, a: int) -> list[tuple[int, float]]:
        terms = [(self._alive(a), 1.0)]
        if a in self.maker:
            terms.append((self._run(self.maker[a]), 1.0))
        return terms

    def _replay(self, c: int) -> None:
        """A replay finds what it reads: from before the cut, made again, or made first after it."""
        for a in self.inst.rereads_C[c]:
            if self._is_made(a):
                self.b.row([*self._there_or_made(a), (self.runs[c], -1.0)], lower=0.0)
